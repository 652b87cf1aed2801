import java.time.Duration;
import java.util.*;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.*;

/** SERVERS LOGINS [JOB,...]: what Kafka's Java clients tell a program, job by job, as lines of JSON. */
public class Events {
    static final long PATIENCE = 60;
    static final long NOW = System.currentTimeMillis();
    static String servers, logins, job;

    interface Job { void run() throws Exception; }

    // Lines

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) return String.valueOf(value);
        if (value instanceof Collection) {
            StringJoiner joined = new StringJoiner(", ", "[", "]");
            for (Object each : (Collection<?>) value) joined.add(json(each));
            return joined.toString();
        }
        return '"' + value.toString().replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    static void tell(String event, Object value) {
        System.out.println("[" + json(job) + ", " + json(event) + ", " + json(value) + "]");
        System.out.flush();
    }

    /** An error by what a program decides by: its class, whether a repetition may help, and the cause. */
    static Object told(Throwable error) {
        if (error == null) return "ok";
        if (error instanceof ExecutionException) return told(error.getCause());
        List<Object> found = new ArrayList<>(List.of(error.getClass().getSimpleName()));
        if (error instanceof RetriableException) found.add("retriable");
        if (error.getCause() != null) found.add(told(error.getCause()));
        return found;
    }

    static Object outcome(Callable<?> call) {
        try {
            Object value = call.call();
            return value == null ? "ok" : value;
        } catch (Exception error) {
            return told(error);
        }
    }

    static boolean until(BooleanSupplier holds) { return until(holds, PATIENCE); }

    static boolean until(BooleanSupplier holds, long seconds) {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!holds.getAsBoolean()) if (System.nanoTime() > end) return false;
        return true;
    }

    // Clients

    static Properties client(Object... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        for (int i = 0; i < more.length; i += 2) made.put((String) more[i], String.valueOf(more[i + 1]));
        return made;
    }

    static Properties as(String user, String password, Object... more) {
        Properties made = client(more);
        made.put("bootstrap.servers", logins);
        made.put("security.protocol", "SASL_PLAINTEXT");
        made.put("sasl.mechanism", "PLAIN");
        made.put("sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required username=\""
            + user + "\" password=\"" + password + "\";");
        return made;
    }

    static KafkaProducer<String, String> producer(Properties given) {
        given.putIfAbsent("max.block.ms", "60000");
        given.putIfAbsent("linger.ms", "0");
        return new KafkaProducer<>(given, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Properties given) {
        given.putIfAbsent("auto.offset.reset", "earliest");
        given.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer());
    }

    static <T> T get(KafkaFuture<T> future) throws Exception { return future.get(PATIENCE, TimeUnit.SECONDS); }

    static void make(String topic, int partitions, String... config) throws Exception {
        try (Admin admin = Admin.create(client())) {
            Map<String, String> settings = new HashMap<>();
            for (int i = 0; i < config.length; i += 2) settings.put(config[i], config[i + 1]);
            // Placed, so that a topic that is made again has the same leader. With another leader it is chance whether the
            // consumer compares its position with the new log (KIP-320), or is told that it is out of range.
            Map<Integer, List<Integer>> places = new HashMap<>();
            for (int i = 0; i < partitions; i++) places.put(i, List.of(1 + i % 3, 1 + (i + 1) % 3, 1 + (i + 2) % 3));
            get(admin.createTopics(List.of(new NewTopic(topic, places).configs(settings))).all());
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            for (int i = 0; i < partitions; i++) asked.put(new TopicPartition(topic, i), OffsetSpec.latest());
            until(() -> outcome(() -> get(admin.listOffsets(asked).all()) == null ? null : "found").equals("found"));
        }
    }

    /** What the callbacks of a producer are told, in their order. */
    static List<Object> write(KafkaProducer<String, String> producer, String topic, int partition, String... values) {
        List<Object> heard = Collections.synchronizedList(new ArrayList<>());
        List<Runnable> later = new ArrayList<>();
        for (String value : values) {
            AtomicBoolean isTold = new AtomicBoolean();
            Object refused = outcome(() -> {
                producer.send(new ProducerRecord<>(topic, partition, NOW, "k", value), (metadata, error) -> {
                    isTold.set(true);
                    heard.add(error != null ? told(error)
                        : List.of("ok", metadata.partition(), metadata.offset(), metadata.timestamp() - NOW));
                });
                return null;
            });
            // It is chance whether a producer id is refused before `send`, which then raises the same error as well.
            // The callback may come after that.
            if (!refused.equals("ok"))
                later.add(() -> { if (!isTold.get()) heard.add(List.of("send raises", refused)); });
        }
        producer.flush();
        later.forEach(Runnable::run);
        return heard;
    }

    static List<Object> write(String topic, String... values) {
        try (KafkaProducer<String, String> producer = producer(client())) {
            return write(producer, topic, 0, values);
        }
    }

    /** Offsets until so many records, or an error; "nothing more" after a while without either. */
    static List<Object> read(KafkaConsumer<String, String> consumer, int count, long seconds) {
        List<Object> seen = new ArrayList<>();
        boolean all = until(() -> {
            try {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200)))
                    seen.add(List.of(each.partition(), each.offset()));
                return seen.size() >= count;
            } catch (Exception error) {
                seen.add(told(error));
                return true;
            }
        }, seconds);
        if (!all) seen.add("nothing more");
        return seen;
    }

    // Producing

    static void deliveries() throws Exception {
        make("java-deliveries", 2);
        for (String acks : List.of("all", "1", "0"))
            try (KafkaProducer<String, String> producer =
                    producer(client("acks", acks, "enable.idempotence", acks.equals("all")))) {
                tell("acks=" + acks, write(producer, "java-deliveries", 1, "a", "b", "c"));
            }
    }

    static void refused() throws Exception {
        make("java-refused", 1, "max.message.bytes", "1000");
        tell("too large for the topic", write("java-refused", "x".repeat(5000)));
        tell("small again", write("java-refused", "x"));
        tell("too large for the client", write("java-refused", "x".repeat(2_000_000)));
        tell("a name that is none", write("a b", "x"));
        make("java-guarded", 1, "min.insync.replicas", "3");
        tell("all replicas needed", write("java-guarded", "x"));
        try (KafkaProducer<String, String> producer = producer(client("max.block.ms", 3000))) {
            tell("no such partition", write(producer, "java-refused", 7, "x"));
        }
        tell("made by use", write("java-made-by-use", "x"));
    }

    static void anotherLeader() throws Exception {
        make("java-led", 1);
        TopicPartition place = new TopicPartition("java-led", 0);
        try (Admin admin = Admin.create(client());
                KafkaProducer<String, String> producer = producer(client());
                KafkaConsumer<String, String> consumer = consumer(client())) {
            consumer.assign(List.of(place));
            for (int turn = 0; turn < 3; turn++) {
                tell("deliveries " + turn, write(producer, "java-led", 0, "a", "b", "c"));
                tell("read " + turn, read(consumer, 3, PATIENCE));
                if (turn == 2) continue;
                TopicPartitionInfo before = get(admin.describeTopics(List.of("java-led")).allTopicNames()).get("java-led").partitions().get(0);
                List<Integer> turned = new ArrayList<>();
                for (Node each : before.replicas()) turned.add(each.id());
                Collections.rotate(turned, 1);
                get(admin.alterPartitionReassignments(Map.of(place, Optional.of(new NewPartitionReassignment(turned)))).all());
                tell("moved " + turn, until(() -> {
                    outcome(() -> get(admin.electLeaders(ElectionType.PREFERRED, Set.of(place)).all()));
                    Object now = outcome(() -> get(admin.describeTopics(List.of("java-led")).allTopicNames())
                        .get("java-led").partitions().get(0).leader().id());
                    return now.equals(turned.get(0));
                }));
            }
        }
    }

    static void madeAgain() throws Exception {
        make("java-again", 1);
        TopicPartition place = new TopicPartition("java-again", 0);
        try (Admin admin = Admin.create(client());
                KafkaProducer<String, String> producer = producer(client());
                KafkaConsumer<String, String> consumer = consumer(client())) {
            consumer.assign(List.of(place));
            tell("deliveries before", write(producer, "java-again", 0, "a", "b", "c"));
            tell("read before", read(consumer, 3, PATIENCE));
            get(admin.deleteTopics(List.of("java-again")).all());
            until(() -> outcome(() -> get(admin.listTopics().names()).contains("java-again")).equals(false));
            make("java-again", 1);
            tell("deliveries after", write(producer, "java-again", 0, "d"));
            tell("read after", read(consumer, 1, PATIENCE));
        }
    }

    // Reading

    static void resets() throws Exception {
        make("java-resets", 1);
        write("java-resets", "a", "b", "c", "d", "e");
        TopicPartition place = new TopicPartition("java-resets", 0);
        try (Admin admin = Admin.create(client())) {
            get(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(2))).all());
        }
        for (String policy : List.of("earliest", "latest", "none", "by_duration:PT1H"))
            for (long offset : new long[] {1, 9, -1}) {
                try (KafkaConsumer<String, String> consumer = consumer(client("auto.offset.reset", policy, "group.id", "java-resets"))) {
                    consumer.assign(List.of(place));
                    if (offset >= 0) consumer.seek(place, offset);
                    String at = offset < 0 ? "nothing committed" : "from " + offset;
                    if (policy.equals("latest"))
                        tell(policy + ", " + at, until(() -> {
                            consumer.poll(Duration.ofMillis(100));
                            return consumer.position(place) == 5;
                        }));
                    else
                        tell(policy + ", " + at, read(consumer, 3, PATIENCE));
                    tell(policy + ", position, " + at, outcome(() -> consumer.position(place)));
                }
            }
    }

    static void lookUps() throws Exception {
        make("java-looks", 1);
        write("java-looks", "a", "b");
        TopicPartition place = new TopicPartition("java-looks", 0), none = new TopicPartition("java-looks", 9);
        try (KafkaConsumer<String, String> consumer = consumer(client("default.api.timeout.ms", 5000, "allow.auto.create.topics", "false"))) {
            tell("beginning", consumer.beginningOffsets(List.of(place)).get(place));
            tell("end", consumer.endOffsets(List.of(place)).get(place));
            for (long when : new long[] {0, NOW, NOW + 1}) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, when)).get(place);
                tell("for a time " + (when == 0 ? "before" : when == NOW ? "of the records" : "after"),
                    found == null ? "none" : List.of(found.offset(), found.timestamp() - NOW, found.leaderEpoch().isPresent()));
            }
            tell("end of no partition", outcome(() -> consumer.endOffsets(List.of(none)).get(none)));
            tell("partitions of no topic", outcome(() -> consumer.partitionsFor("java-nowhere").size()));
            tell("partitions of a bad name", outcome(() -> consumer.partitionsFor("a b").size()));
            tell("committed without a group", outcome(() -> consumer.committed(Set.of(place)).size()));
            consumer.assign(List.of(place));
            consumer.poll(Duration.ofSeconds(10)).forEach(each -> {
                if (each.offset() == 0)
                    tell("record", List.of(each.key(), each.timestampType(), each.timestamp() - NOW, each.serializedValueSize()));
            });
            tell("lag", until(() -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.currentLag(place).orElse(-1) == 0;
            }));
        }
        try (KafkaConsumer<String, String> consumer = consumer(client("group.id", "java-looks"))) {
            consumer.subscribe(List.of("a b"));
            tell("subscribed to a bad name", read(consumer, 1, PATIENCE));
        }
    }

    // Groups

    static class Member implements ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final List<Object> heard = new ArrayList<>();
        final Set<Integer> held = new TreeSet<>();
        Object failure = "ok";

        Member(String group, Object... more) {
            Properties given = client(more);
            given.put("group.id", group);
            consumer = consumer(given);
            consumer.subscribe(List.of(group), this);
        }

        void hear(String what, Collection<TopicPartition> places) {
            TreeSet<Integer> numbers = new TreeSet<>();
            for (TopicPartition each : places) numbers.add(each.partition());
            if (what.equals("assigned")) held.addAll(numbers); else held.removeAll(numbers);
            if (numbers.isEmpty()) return;
            int last = heard.size() - 1;
            // Members came together once more, which a slow machine brings about, and nothing changed.
            if (what.equals("assigned") && last > 0 && heard.get(last).equals(List.of("revoked", numbers))
                    && heard.get(last - 1).equals(List.of("assigned", numbers))) heard.remove(last);
            else heard.add(List.of(what, numbers));
        }

        public void onPartitionsAssigned(Collection<TopicPartition> places) { hear("assigned", places); }
        public void onPartitionsRevoked(Collection<TopicPartition> places) { hear("revoked", places); }
        public void onPartitionsLost(Collection<TopicPartition> places) { hear("lost", places); }

        boolean polled() {
            try {
                if (failure.equals("ok")) consumer.poll(Duration.ofMillis(100));
            } catch (Exception error) {
                failure = told(error);
            }
            return true;
        }

        public void close() { consumer.close(); }

        List<Object> counts() {
            List<Object> found = new ArrayList<>();
            for (Object each : heard) found.add(List.of(((List<?>) each).get(0), ((Set<?>) ((List<?>) each).get(1)).size()));
            return found;
        }
    }

    static void share(String group, boolean byNumber, Object... more) throws Exception {
        make(group, 4);
        Object[] a = Arrays.copyOf(more, more.length + 2), b = a.clone();
        a[more.length] = b[more.length] = "client.id";
        a[more.length + 1] = "a";
        b[more.length + 1] = "b";
        Member first = new Member(group, a);
        until(() -> first.polled() && first.held.size() == 4);
        Member second = new Member(group, b);
        until(() -> first.polled() && second.polled() && first.held.size() == 2 && second.held.size() == 2);
        second.close();
        until(() -> first.polled() && first.held.size() == 4);
        first.close();
        tell("first", byNumber ? first.heard : first.counts());
        tell("second", byNumber ? second.heard : second.counts());
    }

    static void commits() throws Exception {
        make("java-commits", 2);
        write("java-commits", "a", "b");
        TopicPartition place = new TopicPartition("java-commits", 0);
        try (Member member = new Member("java-commits"); Admin admin = Admin.create(client())) {
            until(() -> member.polled() && member.held.size() == 2);
            tell("waited for", outcome(() -> { member.consumer.commitSync(Map.of(place, new OffsetAndMetadata(1, "note"))); return null; }));
            List<Object> heard = new ArrayList<>();
            member.consumer.commitAsync(Map.of(place, new OffsetAndMetadata(2, "later")), (offsets, error) -> heard.add(
                List.of(told(error), offsets.get(place).offset(), offsets.get(place).metadata())));
            until(() -> member.polled() && !heard.isEmpty());
            tell("callbacks", heard);
            OffsetAndMetadata found = member.consumer.committed(Set.of(place)).get(place);
            tell("committed", List.of(found.offset(), found.metadata()));
            tell("beyond the end", outcome(() -> { member.consumer.commitSync(Map.of(place, new OffsetAndMetadata(1000))); return null; }));
            tell("too much metadata", outcome(() -> { member.consumer.commitSync(Map.of(place, new OffsetAndMetadata(1, "x".repeat(5000)))); return null; }));
            Map<TopicPartition, OffsetAndMetadata> none = Map.of(new TopicPartition("java-commits", 9), new OffsetAndMetadata(1));
            tell("no such partition", outcome(() -> { member.consumer.commitSync(none, Duration.ofSeconds(3)); return null; }));
            try (KafkaConsumer<String, String> stranger = consumer(client("group.id", "java-commits"))) {
                stranger.assign(List.of(place));
                tell("by no member", outcome(() -> { stranger.commitSync(Map.of(place, new OffsetAndMetadata(1))); return null; }));
            }
            tell("altered under a member", outcome(() -> get(admin.alterConsumerGroupOffsets("java-commits", Map.of(place, new OffsetAndMetadata(1))).all())));
            tell("offsets deleted under a member", outcome(() -> get(admin.deleteConsumerGroupOffsets("java-commits", Set.of(place)).all())));
            tell("deleted under a member", outcome(() -> get(admin.deleteConsumerGroups(List.of("java-commits")).all())));
            tell("members removed", outcome(() -> get(admin.removeMembersFromConsumerGroup("java-commits", new RemoveMembersFromConsumerGroupOptions()).all())));
            member.polled();
            tell("commit of the removed", outcome(() -> { member.consumer.commitSync(Map.of(place, new OffsetAndMetadata(1))); return null; }));
        }
    }

    static void fencedInstances() throws Exception {
        for (String protocol : List.of("classic", "consumer")) {
            String topic = "java-instances-" + protocol;
            make(topic, 1);
            Object[] given = {"group.instance.id", "one", "group.protocol", protocol};
            Member first = new Member(topic, given);
            until(() -> first.polled() && !first.held.isEmpty());
            Member second = new Member(topic, given);
            until(() -> first.polled() && second.polled() && !(first.failure.equals("ok") && second.failure.equals("ok")), 20);
            tell(protocol + ": first", first.failure);
            tell(protocol + ": second", List.of(second.failure, second.held));
            first.close();
            second.close();
        }
    }

    // Transactions

    static void transactions() throws Exception {
        make("java-transactions", 1);
        TopicPartition place = new TopicPartition("java-transactions", 0);
        try (KafkaProducer<String, String> producer = producer(client("transactional.id", "java-t-1"));
                KafkaProducer<String, String> rival = producer(client("transactional.id", "java-t-1"))) {
            tell("before init", outcome(() -> { producer.beginTransaction(); return null; }));
            producer.initTransactions();
            producer.beginTransaction();
            tell("kept", write(producer, "java-transactions", 0, "kept"));
            producer.commitTransaction();
            producer.beginTransaction();
            tell("dropped", write(producer, "java-transactions", 0, "dropped"));
            producer.abortTransaction();
            producer.beginTransaction();
            tell("open", write(producer, "java-transactions", 0, "open"));
            for (String isolation : List.of("read_committed", "read_uncommitted"))
                try (KafkaConsumer<String, String> consumer = consumer(client("isolation.level", isolation))) {
                    consumer.assign(List.of(place));
                    tell(isolation + ", one open", read(consumer, isolation.endsWith("uncommitted") ? 3 : 1, PATIENCE));
                    tell(isolation + ", end", consumer.endOffsets(List.of(place)).get(place));
                }
            rival.initTransactions();
            tell("late", write(producer, "java-transactions", 0, "late"));
            tell("commit of the fenced", outcome(() -> { producer.commitTransaction(); return null; }));
            tell("abort of the fenced", outcome(() -> { producer.abortTransaction(); return null; }));
            tell("begin of the fenced", outcome(() -> { producer.beginTransaction(); return null; }));
            rival.beginTransaction();
            tell("of the rival", write(rival, "java-transactions", 0, "kept, too"));
            rival.commitTransaction();
        }
        for (String isolation : List.of("read_committed", "read_uncommitted"))
            try (KafkaConsumer<String, String> consumer = consumer(client("isolation.level", isolation))) {
                consumer.assign(List.of(place));
                tell(isolation + ", all ended", read(consumer, isolation.endsWith("uncommitted") ? 4 : 2, PATIENCE));
            }
        try (KafkaProducer<String, String> slow = producer(client("transactional.id", "java-t-2", "transaction.timeout.ms", 2_000_000_000))) {
            tell("a timeout that is too long", outcome(() -> { slow.initTransactions(); return null; }));
        }
        try (Admin admin = Admin.create(client())) {
            tell("described", outcome(() -> get(admin.describeTransactions(List.of("java-t-1")).all()).get("java-t-1").state()));
            tell("described, unknown", outcome(() -> get(admin.describeTransactions(List.of("java-nobody")).all()).size()));
            tell("fenced by an administrator", outcome(() -> get(admin.fenceProducers(List.of("java-t-1")).all())));
        }
    }

    static void offsetsOfTransactions() throws Exception {
        make("java-offsets", 1);
        write("java-offsets", "a", "b");
        TopicPartition place = new TopicPartition("java-offsets", 0);
        try (KafkaProducer<String, String> producer = producer(client("transactional.id", "java-o-1"))) {
            producer.initTransactions();
            ConsumerGroupMetadata metadata;
            try (Member member = new Member("java-offsets")) {
                until(() -> member.polled() && !member.held.isEmpty());
                metadata = member.consumer.groupMetadata();
                producer.beginTransaction();
                tell("sent by a member", outcome(() -> { producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(2)), metadata); return null; }));
                tell("committed", outcome(() -> { producer.commitTransaction(); return null; }));
                // Kafka answers while the marker of the transaction is on its way, and then knows no offset.
                tell("found in time", until(() ->
                    outcome(() -> member.consumer.committed(Set.of(place)).get(place).offset()).equals(2L)));
            }
            producer.beginTransaction();
            tell("sent by a member that has left", outcome(() -> { producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), metadata); return null; }));
            tell("commit then", outcome(() -> { producer.commitTransaction(); return null; }));
            tell("abort then", outcome(() -> { producer.abortTransaction(); return null; }));
        }
    }

    // Administration

    static void administration() throws Exception {
        make("java-managed", 2);
        try (Admin admin = Admin.create(client())) {
            Map<String, NewTopic> wrong = new LinkedHashMap<>();
            wrong.put("exists", new NewTopic("java-managed", 1, (short) 3));
            wrong.put("bad name", new NewTopic("a b", 1, (short) 3));
            wrong.put("no partitions", new NewTopic("java-none", 0, (short) 3));
            wrong.put("nine replicas", new NewTopic("java-many", 1, (short) 9));
            wrong.put("unknown setting", new NewTopic("java-unknown", 1, (short) 3).configs(Map.of("no.such.setting", "1")));
            wrong.put("bad value", new NewTopic("java-bad", 1, (short) 3).configs(Map.of("retention.ms", "soon")));
            wrong.put("no such node", new NewTopic("java-placed", Map.of(0, List.of(1, 9))));
            wrong.put("gap", new NewTopic("java-gap", Map.of(1, List.of(1, 2))));
            for (Map.Entry<String, NewTopic> each : wrong.entrySet())
                tell("create: " + each.getKey(), outcome(() -> get(admin.createTopics(List.of(each.getValue())).all())));
            tell("validate only", outcome(() -> {
                CreateTopicsResult made = admin.createTopics(List.of(new NewTopic("java-tried", Optional.empty(), Optional.empty())), new CreateTopicsOptions().validateOnly(true));
                return List.of(get(made.numPartitions("java-tried")), get(made.replicationFactor("java-tried")));
            }));
            tell("tried", outcome(() -> get(admin.describeTopics(List.of("java-tried")).allTopicNames()).size()));
            tell("grow less", outcome(() -> get(admin.createPartitions(Map.of("java-managed", NewPartitions.increaseTo(1))).all())));
            tell("grow to nowhere", outcome(() -> get(admin.createPartitions(Map.of("java-managed", NewPartitions.increaseTo(3, List.of(List.of(9))))).all())));
            tell("delete what is not", outcome(() -> get(admin.deleteTopics(List.of("java-nowhere")).all())));
            tell("delete an unknown id", outcome(() -> get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).all())));
            tell("reassign to nowhere", outcome(() -> get(admin.alterPartitionReassignments(
                Map.of(new TopicPartition("java-managed", 0), Optional.of(new NewPartitionReassignment(List.of(1, 9))))).all())));
            tell("cancel nothing", outcome(() -> get(admin.alterPartitionReassignments(
                Map.of(new TopicPartition("java-managed", 0), Optional.empty())).all())));
            tell("elect", outcome(() -> get(admin.electLeaders(ElectionType.PREFERRED, Set.of(new TopicPartition("java-managed", 0))).all())));
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "java-managed");
            tell("set what is not", outcome(() -> get(admin.incrementalAlterConfigs(Map.of(topic,
                List.of(new AlterConfigOp(new ConfigEntry("no.such.setting", "1"), AlterConfigOp.OpType.SET)))).all())));
            tell("append to a number", outcome(() -> get(admin.incrementalAlterConfigs(Map.of(topic,
                List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "1"), AlterConfigOp.OpType.APPEND)))).all())));
            tell("append to a list", outcome(() -> {
                get(admin.incrementalAlterConfigs(Map.of(topic,
                    List.of(new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all());
                ConfigEntry[] found = new ConfigEntry[1];
                until(() -> outcome(() -> {
                    found[0] = get(admin.describeConfigs(List.of(topic)).all()).get(topic).get("cleanup.policy");
                    return found[0].value();
                }).toString().contains("compact"));
                return List.of(found[0].value(), found[0].source(), found[0].isReadOnly(), found[0].type());
            }));
            tell("no such group", outcome(() -> get(admin.describeConsumerGroups(List.of("java-nobody")).all()).get("java-nobody").groupState()));
            tell("offsets of no group", outcome(() -> get(admin.listConsumerGroupOffsets("java-nobody").all()).size()));
            tell("delete no group", outcome(() -> get(admin.deleteConsumerGroups(List.of("java-nobody")).all())));
            tell("delete records beyond the end", outcome(() -> get(admin.deleteRecords(
                Map.of(new TopicPartition("java-managed", 0), RecordsToDelete.beforeOffset(5))).all())));
            tell("features", outcome(() -> {
                Set<String> known = get(admin.describeFeatures().featureMetadata()).finalizedFeatures().keySet();
                List<String> found = new ArrayList<>();
                for (String each : List.of("group.version", "transaction.version")) if (known.contains(each)) found.add(each);
                return found;
            }));
            tell("nodes", outcome(() -> get(admin.describeCluster().nodes()).size()));
        }
    }

    // Logins and rights

    static void rights() throws Exception {
        make("java-rights", 1);
        write("java-rights", "x");
        TopicPartition place = new TopicPartition("java-rights", 0);
        try (Admin admin = Admin.create(as("reader", "wrong"))) {
            tell("wrong password", outcome(() -> get(admin.listTopics().names()).size()));
        }
        for (String user : List.of("reader", "writer")) {
            try (KafkaProducer<String, String> producer = producer(as(user, "secret"))) {
                tell(user + " writes", write(producer, "java-rights", 0, "y"));
            }
            try (KafkaProducer<String, String> producer = producer(as(user, "secret", "transactional.id", "java-" + user))) {
                tell(user + " begins transactions", outcome(() -> { producer.initTransactions(); return null; }));
            }
            for (boolean grouped : new boolean[] {false, true})
                try (KafkaConsumer<String, String> consumer = consumer(as(user, "secret", "group.id", "java-of-" + user))) {
                    if (grouped) consumer.subscribe(List.of("java-rights")); else consumer.assign(List.of(place));
                    if (!grouped) consumer.seek(place, 0);
                    List<Object> seen = read(consumer, 1, PATIENCE);
                    tell(user + (grouped ? " reads in a group" : " reads"), seen.subList(0, 1));
                }
            try (Admin admin = Admin.create(as(user, "secret"))) {
                tell(user + " creates", outcome(() -> get(admin.createTopics(List.of(new NewTopic("java-by-" + user, 1, (short) 3))).all())));
                tell(user + " deletes", outcome(() -> get(admin.deleteTopics(List.of("java-rights")).all())));
                tell(user + " elects", outcome(() -> get(admin.electLeaders(ElectionType.PREFERRED, Set.of(place)).all())));
                tell(user + " describes the other's group", outcome(() -> get(admin.describeConsumerGroups(List.of("java-of-reader")).all()).size()));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        logins = arguments[1];
        Map<String, Job> jobs = new LinkedHashMap<>();
        jobs.put("deliveries", Events::deliveries);
        jobs.put("refused records", Events::refused);
        jobs.put("another leader", Events::anotherLeader);
        jobs.put("made again", Events::madeAgain);
        jobs.put("resets", Events::resets);
        jobs.put("look-ups", Events::lookUps);
        jobs.put("group by ranges", () -> share("java-ranges", true, "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.RangeAssignor"));
        jobs.put("group, cooperative", () -> share("java-cooperative", false, "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"));
        jobs.put("group of KIP-848", () -> share("java-848", false, "group.protocol", "consumer"));
        jobs.put("commits", Events::commits);
        jobs.put("fenced instances", Events::fencedInstances);
        jobs.put("transactions", Events::transactions);
        jobs.put("offsets of transactions", Events::offsetsOfTransactions);
        jobs.put("administration", Events::administration);
        jobs.put("rights", Events::rights);
        for (Map.Entry<String, Job> each : jobs.entrySet()) {
            job = each.getKey();
            if (arguments.length > 2 && !List.of(arguments[2].split(",")).contains(job)) continue;
            long start = System.nanoTime();
            try {
                each.getValue().run();
            } catch (Throwable error) {
                error.printStackTrace();
                tell("ends with", told(error));
            }
            System.err.printf("%s: %.1f s%n", job, (System.nanoTime() - start) / 1e9);
        }
        System.exit(0);
    }
}
