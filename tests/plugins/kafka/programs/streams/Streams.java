import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.*;

/**
 * Counts of words, in all and by minute, over a repartition topic and with state that is restored; ends with "done".
 *
 * Caches are off, so that each record has one count in the output: a count that is absent or there twice is an error.
 */
public class Streams {
    static final int PARTITIONS = 3, PART = 300, WORDS = 7, SECONDS = 90;
    /** The topics that Streams creates itself, with their cleanup policies. */
    static final Map<String, Set<String>> INTERNAL = Map.of("words-repartition", Set.of("delete"),
        "counts-changelog", Set.of("compact"), "windows-changelog", Set.of("compact", "delete"));

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    interface Question {
        boolean holds() throws Exception;
    }

    static void await(Question question, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!question.holds()) {
            check(System.nanoTime() < end, "not within " + SECONDS + " s: " + what);
            Thread.sleep(100);
        }
    }

    static Properties settings(String servers, Object... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    static String word(int number) {
        return "w" + number % WORDS;
    }

    static long time(long start, int number) {
        return start + number * 1000L;
    }

    /** The application. poison: a record at which it fails once, after the counts have been written on. */
    static Topology topology(String name, String poison, AtomicBoolean failed) {
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> text = Consumed.with(Serdes.String(), Serdes.String());
        GlobalKTable<String, String> names = builder.globalTable(name + "-names", text);
        KGroupedStream<String, String> words = builder.stream(name + "-in", text)
            .join(names, (key, word) -> word, (word, full) -> full)
            .groupBy((key, full) -> full, Grouped.with("words", Serdes.String(), Serdes.String()));
        words.count(Materialized.as("counts")).toStream()
            .to(name + "-out", Produced.with(Serdes.String(), Serdes.Long()));
        words.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofDays(1)))
            .count(Materialized.as("windows")).toStream((window, count) -> window.key() + "@" + window.window().start())
            .peek((key, count) -> {
                if (key.startsWith(poison) && count == 2 && failed.compareAndSet(false, true))
                    throw new IllegalStateException("fails once, as intended");
            })
            .to(name + "-windows", Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    /** One process of the application, with its own folder. */
    static class Instance implements AutoCloseable {
        final AtomicLong restored = new AtomicLong();
        final AtomicBoolean failed = new AtomicBoolean();
        final Queue<Throwable> unexpected = new ConcurrentLinkedQueue<>();
        final KafkaStreams streams;

        Instance(String servers, String name, String guarantee, Path folder, String poison) throws Exception {
            Properties told = settings(servers, "application.id", name, "processing.guarantee", guarantee,
                // -1, which is Streams' default, leaves the number to the nodes.
                "replication.factor", guarantee.equals("at_least_once") ? -1 : 3,
                "num.stream.threads", 2, "num.standby.replicas", 1, "statestore.cache.max.bytes", 0,
                "commit.interval.ms", 200, "repartition.purge.interval.ms", 500,
                "state.dir", folder.toString(), "default.key.serde", Serdes.StringSerde.class,
                "default.value.serde", Serdes.StringSerde.class, "session.timeout.ms", 6000, "heartbeat.interval.ms", 1500,
                "consumer.auto.offset.reset", "earliest");
            streams = new KafkaStreams(topology(name, poison, failed), told);
            streams.setUncaughtExceptionHandler(error -> {
                for (Throwable each = error; each != null; each = each.getCause())
                    if (each instanceof IllegalStateException) return StreamThreadExceptionResponse.REPLACE_THREAD;
                unexpected.add(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.setGlobalStateRestoreListener(new StateRestoreListener() {
                public void onRestoreStart(TopicPartition place, String store, long start, long end) {}
                public void onBatchRestored(TopicPartition place, String store, long end, long count) {}
                public void onRestoreEnd(TopicPartition place, String store, long total) {
                    if (store.equals("counts")) restored.addAndGet(total);
                }
            });
            streams.start();
        }

        /** The counts of all partitions that this process has. */
        Map<String, Long> counts() throws Exception {
            await(this::isRunning, "the application runs");
            ReadOnlyKeyValueStore<String, Long> store =
                streams.store(StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
            Map<String, Long> found = new TreeMap<>();
            try (KeyValueIterator<String, Long> all = store.all()) {
                all.forEachRemaining(each -> found.put(each.key, each.value));
            }
            return found;
        }

        boolean isRunning() {
            check(unexpected.isEmpty(), "the application has failed: " + unexpected);
            return streams.state() == KafkaStreams.State.RUNNING;
        }

        public void close() {
            check(streams.close(Duration.ofSeconds(SECONDS)), "the application ends");
        }
    }

    /** What has been written to a topic and committed, by key, in the order of the log. */
    static class Output implements AutoCloseable {
        final KafkaConsumer<String, Long> consumer;
        final Map<String, List<Long>> found = new TreeMap<>();

        Output(String servers, String topic) {
            consumer = new KafkaConsumer<>(
                settings(servers, "isolation.level", "read_committed", "auto.offset.reset", "earliest"),
                new StringDeserializer(), new LongDeserializer());
            List<TopicPartition> places = new ArrayList<>();
            for (int i = 0; i < PARTITIONS; i++) places.add(new TopicPartition(topic, i));
            consumer.assign(places);
        }

        /** It becomes what is expected, and stays so. */
        void becomes(Map<String, List<Long>> expected, Instance... running) throws Exception {
            int count = expected.values().stream().mapToInt(List::size).sum();
            await(() -> {
                for (Instance each : running) each.isRunning();
                read(300);
                return found.values().stream().mapToInt(List::size).sum() >= count;
            }, count + " records of output, there are " + found);
            read(1000);
            check(found.equals(expected), "output: " + found + " is not " + expected);
        }

        void read(int millis) {
            for (ConsumerRecord<String, Long> each : consumer.poll(Duration.ofMillis(millis)))
                found.computeIfAbsent(each.key(), key -> new ArrayList<>()).add(each.value());
        }

        public void close() {
            consumer.close();
        }
    }

    /** The counts 1, 2, 3, ... of each word, or of each word in each minute. */
    static Map<String, List<Long>> expected(long start, int count, boolean windowed) {
        Map<String, List<Long>> made = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            String key = "full " + word(i) + (windowed ? "@" + time(start, i) / 60000 * 60000 : "");
            List<Long> counts = made.computeIfAbsent(key, each -> new ArrayList<>());
            counts.add(counts.size() + 1L);
        }
        return made;
    }

    static void write(String servers, String topic, long start, int from, int to) {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings(servers, "linger.ms", 5), new StringSerializer(), new StringSerializer())) {
            for (int i = from; i < to; i++)
                producer.send(new ProducerRecord<>(topic, i % PARTITIONS, time(start, i), "k" + i, word(i)));
        }
    }

    static void checkInternalTopics(Admin admin, String name) throws Exception {
        for (String each : INTERNAL.keySet()) {
            String topic = name + "-" + each;
            TopicDescription told = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            check(told.partitions().size() == PARTITIONS, topic + ": " + told);
            check(told.partitions().get(0).replicas().size() == 3, topic + ": " + told);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            String policy = config.get("cleanup.policy").value();
            check(Set.of(policy.split(",")).equals(INTERNAL.get(each)), topic + ": " + policy);
            if (each.equals("words-repartition"))
                check(config.get("retention.ms").value().equals("-1"), topic + ": " + config.get("retention.ms"));
        }
    }

    /** Streams deletes from its repartition topics what it has read and committed. */
    static boolean isPurged(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        for (int i = 0; i < PARTITIONS; i++) asked.put(new TopicPartition(topic, i), OffsetSpec.earliest());
        return admin.listOffsets(asked).all().get().values().stream().mapToLong(each -> each.offset()).sum() > 0;
    }

    static void count(String servers, String name, String guarantee, Path folder) throws Exception {
        boolean exactly = guarantee.equals("exactly_once_v2");
        // Under at_least_once what came before a failure is counted again.
        String poison = exactly ? "full w3@" : "nothing";
        long start = (System.currentTimeMillis() / 60000 - 120) * 60000;
        try (Admin admin = Admin.create(settings(servers));
                Output totals = new Output(servers, name + "-out");
                Output windows = new Output(servers, name + "-windows")) {
            List<NewTopic> topics = new ArrayList<>();
            for (String each : List.of("in", "out", "windows", "names"))
                topics.add(new NewTopic(name + "-" + each, PARTITIONS, (short) 3));
            admin.createTopics(topics).all().get(20, TimeUnit.SECONDS);
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(settings(servers), new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < WORDS; i++) producer.send(new ProducerRecord<>(name + "-names", word(i), "full " + word(i)));
            }

            write(servers, name + "-in", start, 0, PART);
            try (Instance first = new Instance(servers, name, guarantee, folder.resolve("first"), poison)) {
                totals.becomes(expected(start, PART, false), first);
                windows.becomes(expected(start, PART, true), first);
                check(first.failed.get() == exactly, "the application has failed once under exactly_once_v2");
                checkInternalTopics(admin, name);
                await(() -> isPurged(admin, name + "-words-repartition"), "records of the repartition topic are deleted");
            }

            // Another folder: nothing but the changelog has the counts.
            try (Instance second = new Instance(servers, name, guarantee, folder.resolve("second"), "nothing")) {
                write(servers, name + "-in", start, PART, 2 * PART);
                totals.becomes(expected(start, 2 * PART, false), second);
                windows.becomes(expected(start, 2 * PART, true), second);
                check(second.restored.get() > 0, "state was restored");
                Map<String, Long> last = new TreeMap<>();
                expected(start, 2 * PART, false).forEach((key, counts) -> last.put(key, (long) counts.size()));
                check(second.counts().equals(last), "the store: " + second.counts());

                // A second process takes a part, and then all, while records are written.
                try (Instance third = new Instance(servers, name, guarantee, folder.resolve("third"), "nothing")) {
                    for (int i = 2 * PART; i < 3 * PART; i += 30) {
                        write(servers, name + "-in", start, i, i + 30);
                        if (i == 2 * PART + 210) {
                            await(third::isRunning, "the other process runs");
                            second.close();
                        }
                        Thread.sleep(200);
                    }
                    totals.becomes(expected(start, 3 * PART, false), third);
                    windows.becomes(expected(start, 3 * PART, true), third);
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createTempDirectory("insync-streams-");
        try {
            for (String guarantee : List.of("at_least_once", "exactly_once_v2"))
                count(arguments[0], arguments[1] + "-" + guarantee, guarantee, folder.resolve(guarantee));
        } finally {
            try (var found = Files.walk(folder)) {
                for (Path each : found.sorted(Comparator.reverseOrder()).toList()) Files.delete(each);
            }
        }
        System.out.println("done");
        System.exit(0);
    }
}
