import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** Transactions: committed, aborted, with offsets, and of a producer that is fenced; ends with "done". */
public class Transactions {
    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static Properties settings(String servers, String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    static KafkaProducer<String, String> producer(String servers, String id) {
        KafkaProducer<String, String> made = new KafkaProducer<>(
            settings(servers, "transactional.id", id), new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    static KafkaConsumer<String, String> consumer(String servers, String group) {
        return new KafkaConsumer<>(
            settings(servers, "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "isolation.level", "read_committed"),
            new StringDeserializer(), new StringDeserializer());
    }

    static List<String> read(KafkaConsumer<String, String> consumer, int count) {
        List<String> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 30000;
        while (found.size() < count && System.currentTimeMillis() < deadline)
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(300))) found.add(each.value());
        return found;
    }

    /** With what the version knows of the group: since 2.5 the member and its generation, before only its name. */
    static void sendOffsets(
            Producer<?, ?> producer, Map<TopicPartition, OffsetAndMetadata> offsets, Consumer<?, ?> reader, String group)
            throws Exception {
        try {
            Object member = Consumer.class.getMethod("groupMetadata").invoke(reader);
            Class<?> type = Class.forName("org.apache.kafka.clients.consumer.ConsumerGroupMetadata");
            Producer.class.getMethod("sendOffsetsToTransaction", Map.class, type).invoke(producer, offsets, member);
        } catch (NoSuchMethodException error) {
            Producer.class.getMethod("sendOffsetsToTransaction", Map.class, String.class).invoke(producer, offsets, group);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], name = "java-txn-" + arguments[1];
        try (Admin admin = Admin.create(settings(servers))) {
            admin.createTopics(List.of(new NewTopic(name + "-in", 1, (short) 3), new NewTopic(name + "-out", 1, (short) 3)))
                .all().get(20, TimeUnit.SECONDS);
            try (KafkaProducer<String, String> first = producer(servers, name)) {
                first.beginTransaction();
                for (int i = 0; i < 5; i++) first.send(new ProducerRecord<>(name + "-in", "v" + i));
                first.commitTransaction();
                first.beginTransaction();
                first.send(new ProducerRecord<>(name + "-in", "aborted"));
                first.flush();
                first.abortTransaction();
                first.beginTransaction();
                first.send(new ProducerRecord<>(name + "-in", "v5"));
                first.commitTransaction();
                try (KafkaProducer<String, String> second = producer(servers, name);
                        KafkaConsumer<String, String> reader = consumer(servers, name)) {
                    boolean isFenced = false;
                    try {
                        first.beginTransaction();
                        first.send(new ProducerRecord<>(name + "-in", "of a fenced producer"));
                        first.commitTransaction();
                    } catch (KafkaException error) { // InvalidProducerEpochException is not known to all versions
                        isFenced = error.getClass().getSimpleName().matches("ProducerFenced.*|InvalidProducerEpoch.*");
                    }
                    check(isFenced, "the former producer is fenced");
                    reader.subscribe(List.of(name + "-in"));
                    List<String> found = read(reader, 6);
                    check(found.equals(List.of("v0", "v1", "v2", "v3", "v4", "v5")), "committed records: " + found);
                    second.beginTransaction();
                    for (String each : found) second.send(new ProducerRecord<>(name + "-out", each));
                    TopicPartition place = new TopicPartition(name + "-in", 0);
                    long position = reader.position(place);
                    sendOffsets(second, Map.of(place, new OffsetAndMetadata(position)), reader, name);
                    second.commitTransaction();
                    OffsetAndMetadata committed = null;
                    // Clients before 2.5 do not wait for the end of a transaction whose commit was acknowledged.
                    for (int i = 0; i < 200 && committed == null; i++) committed = reader.committed(Set.of(place)).get(place);
                    check(committed != null && committed.offset() == position, "offsets of the transaction: " + committed);
                }
            }
            try (KafkaConsumer<String, String> reader = consumer(servers, name + "-2")) {
                reader.subscribe(List.of(name + "-out"));
                check(read(reader, 6).size() == 6, "what was written on");
            }
        }
        System.out.println("done");
    }
}
