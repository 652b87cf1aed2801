import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Writes and reads by each codec and acknowledgement, then administers; ends with "done" if all is as it must be. */
public class Smoke {
    static String servers;
    /** Of the first record; what is older than a topic's retention is deleted within seconds. */
    static final long START = System.currentTimeMillis() - 60_000;

    static Properties settings(String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("request.timeout.ms", "15000");
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    /** By the first of these names that this version of the clients has. */
    @SuppressWarnings("unchecked")
    static <T> T call(Object target, String... names) throws Exception {
        for (String each : names)
            for (Class<?> type = target.getClass(); type != null; type = type.getSuperclass())
                for (var method : type.getMethods())
                    if (method.getName().equals(each) && method.getParameterCount() == 0) {
                        method.setAccessible(true);
                        return (T) ((org.apache.kafka.common.KafkaFuture<?>) method.invoke(target)).get(20, TimeUnit.SECONDS);
                    }
        throw new AssertionError("no method of " + List.of(names));
    }

    static void produce(String topic, int count, String... more) throws Exception {
        Properties given = settings(more);
        given.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        given.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(given)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++)
                sent.add(producer.send(new ProducerRecord<>(topic, 0, START + i, "k" + i, "v" + i)));
            boolean isTold = !"0".equals(given.get("acks"));
            for (int i = 0; i < count; i++) {
                long offset = sent.get(i).get(20, TimeUnit.SECONDS).offset();
                check(!isTold || offset == i, topic + ": offset " + offset + ", not " + i);
            }
        }
    }

    static void consume(String topic, int count, String... more) {
        Properties given = settings(more);
        given.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        given.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(given)) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            int seen = 0;
            long deadline = System.currentTimeMillis() + 20000;
            while (seen < count && System.currentTimeMillis() < deadline)
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
                    check(each.value().equals("v" + seen) && each.offset() == seen, topic + ": record " + seen);
                    seen++;
                }
            check(seen == count, topic + ": " + seen + " records of " + count);
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, START + 5)).get(place);
            check(found != null && found.offset() == 5, topic + ": offset of a time is " + found);
            check(consumer.endOffsets(List.of(place)).get(place) == count, topic + ": end");
        }
    }

    /** The first record, and those that were written without acknowledgements behind it. */
    static void countUnacknowledged(String topic, int count) {
        Properties given = settings();
        given.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        given.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(given)) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            int seen = 0;
            long deadline = System.currentTimeMillis() + 20000;
            while (seen < count && System.currentTimeMillis() < deadline)
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
                    check(seen == 0 || each.value().equals("v" + (seen - 1)), topic + ": record " + seen);
                    seen++;
                }
            check(seen == count, topic + ": " + seen + " records of " + count);
        }
    }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        String name = "java-" + arguments[1];
        try (Admin admin = Admin.create(settings())) {
            List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
            List<NewTopic> topics = new ArrayList<>();
            for (String codec : codecs) topics.add(new NewTopic(name + "-" + codec, 1, (short) 3));
            for (String acks : List.of("0", "1", "all")) topics.add(new NewTopic(name + "-acks-" + acks, 2, (short) 3));
            admin.createTopics(topics).all().get(20, TimeUnit.SECONDS);
            for (String codec : codecs) produce(name + "-" + codec, 200, "compression.type", codec);
            // Without acknowledgements nobody hears that a new partition has no leader yet.
            produce(name + "-acks-0", 1, "acks", "all");
            for (String acks : List.of("1", "all"))
                produce(name + "-acks-" + acks, 50, "acks", acks, "enable.idempotence", "false",
                    "max.in.flight.requests.per.connection", "1"); // a first record may be sent twice
            produce(name + "-acks-0", 50, "acks", "0", "enable.idempotence", "false");
            for (String codec : codecs) consume(name + "-" + codec, 200);
            for (String acks : List.of("1", "all"))
                consume(name + "-acks-" + acks, 50, "isolation.level", "read_committed");
            countUnacknowledged(name + "-acks-0", 51);
            String topic = name + "-none";
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get(20, TimeUnit.SECONDS);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "5000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get(20, TimeUnit.SECONDS);
            Config config = admin.describeConfigs(List.of(resource)).all().get(20, TimeUnit.SECONDS).get(resource);
            check(config.get("retention.ms").value().equals("5000"), "the changed setting");
            check(admin.describeCluster().nodes().get(20, TimeUnit.SECONDS).size() == 3, "three nodes");
            Map<Integer, ?> folders = call(admin.describeLogDirs(List.of(1)), "allDescriptions", "all");
            check(!folders.isEmpty(), "folders");
            TopicPartition place = new TopicPartition(name + "-zstd", 0);
            long low = admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(10)))
                .lowWatermarks().get(place).get(20, TimeUnit.SECONDS).lowWatermark();
            check(low == 10, "deleted up to " + low);
            Map<String, TopicDescription> told = call(admin.describeTopics(List.of(topic)), "allTopicNames", "all");
            check(told.get(topic).partitions().size() == 3, "partitions");
            check(admin.listPartitionReassignments().reassignments().get(20, TimeUnit.SECONDS).isEmpty(), "moves");
            List<String> names = new ArrayList<>();
            for (NewTopic each : topics) names.add(each.name());
            admin.deleteTopics(names).all().get(20, TimeUnit.SECONDS);
        }
        System.out.println("done");
    }
}
