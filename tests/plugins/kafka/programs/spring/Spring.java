import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.springframework.kafka.core.*;
import org.springframework.kafka.listener.*;
import org.springframework.kafka.listener.ContainerProperties.AckMode;
import org.springframework.kafka.support.Acknowledgment;
import org.springframework.kafka.transaction.KafkaTransactionManager;

/** Spring's listener containers with each way to acknowledge, and its transactions; ends with "done". */
public class Spring {
    static final int COUNT = 20;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static Map<String, Object> settings(String servers, Object... more) {
        Map<String, Object> made = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) made.put((String) more[i], more[i + 1]);
        return made;
    }

    static ConcurrentMessageListenerContainer<String, String> container(
            String servers, String topic, String group, AckMode mode, Object listener) {
        var consumers = new DefaultKafkaConsumerFactory<>(
            settings(servers, "auto.offset.reset", "earliest", "isolation.level", "read_committed", "enable.auto.commit", false),
            new StringDeserializer(), new StringDeserializer());
        var told = new ContainerProperties(topic);
        told.setGroupId(group);
        told.setAckMode(mode);
        told.setAckCount(7);
        told.setAckTime(200);
        told.setMessageListener(listener);
        var made = new ConcurrentMessageListenerContainer<>(consumers, told);
        made.setConcurrency(2);
        return made;
    }

    static Object listener(AckMode mode, CountDownLatch seen) {
        if (mode == AckMode.MANUAL || mode == AckMode.MANUAL_IMMEDIATE)
            return (AcknowledgingMessageListener<String, String>) (ConsumerRecord<String, String> record, Acknowledgment ack) -> {
                ack.acknowledge();
                seen.countDown();
            };
        return (MessageListener<String, String>) record -> seen.countDown();
    }

    static long committed(Admin admin, String group) throws Exception {
        long sum = 0;
        for (var each : admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(20, TimeUnit.SECONDS).values())
            sum += each.offset();
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], name = arguments[1];
        try (Admin admin = Admin.create(settings(servers))) {
            admin.createTopics(List.of(new NewTopic(name, 2, (short) 3), new NewTopic(name + "-out", 1, (short) 3)))
                .all().get(20, TimeUnit.SECONDS);
            var producers = new DefaultKafkaProducerFactory<>(settings(servers), new StringSerializer(), new StringSerializer());
            var template = new KafkaTemplate<>(producers);
            for (int i = 0; i < COUNT; i++) template.send(name, i % 2, "k", "v" + i).get(20, TimeUnit.SECONDS);
            producers.destroy();
            List<ConcurrentMessageListenerContainer<String, String>> running = new ArrayList<>();
            Map<AckMode, CountDownLatch> latches = new EnumMap<>(AckMode.class);
            for (AckMode mode : AckMode.values()) {
                latches.put(mode, new CountDownLatch(COUNT));
                var made = container(servers, name, name + "-" + mode, mode, listener(mode, latches.get(mode)));
                made.start();
                running.add(made);
            }
            for (AckMode mode : AckMode.values())
                check(latches.get(mode).await(60, TimeUnit.SECONDS), mode + ": " + latches.get(mode).getCount() + " are missing");
            for (var each : running) each.stop();
            for (AckMode mode : AckMode.values())
                check(committed(admin, name + "-" + mode) == COUNT, mode + ": committed " + committed(admin, name + "-" + mode));

            var transactional = new DefaultKafkaProducerFactory<>(
                settings(servers), new StringSerializer(), new StringSerializer());
            transactional.setTransactionIdPrefix(name);
            var writes = new KafkaTemplate<>(transactional);
            CountDownLatch passed = new CountDownLatch(COUNT);
            var moves = container(servers, name, name + "-moves", AckMode.BATCH,
                (MessageListener<String, String>) record -> {
                    writes.send(name + "-out", record.value());
                    passed.countDown();
                });
            moves.getContainerProperties().setKafkaAwareTransactionManager(new KafkaTransactionManager<>(transactional));
            moves.start();
            check(passed.await(60, TimeUnit.SECONDS), "records in transactions");
            moves.stop();
            check(committed(admin, name + "-moves") >= COUNT, "offsets in transactions: " + committed(admin, name + "-moves"));
            CountDownLatch out = new CountDownLatch(COUNT);
            var reads = container(servers, name + "-out", name + "-out", AckMode.BATCH, listener(AckMode.BATCH, out));
            reads.start();
            check(out.await(60, TimeUnit.SECONDS), "records that were written in transactions");
            reads.stop();
            transactional.destroy();
        }
        System.out.println("done");
    }
}
