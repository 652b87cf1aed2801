import java.lang.reflect.Method;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** Groups by the protocols that are named, as members and as an administrator; ends with "done". */
public class Groups {
    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static Properties settings(String servers, String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("request.timeout.ms", "15000");
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    static KafkaConsumer<String, String> member(String servers, String group, String protocol) {
        Properties given = settings(servers, "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        if (protocol.equals("consumer")) given.put("group.protocol", "consumer");
        return new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer());
    }

    static int read(KafkaConsumer<String, String> consumer, int count) {
        int seen = 0;
        long deadline = System.currentTimeMillis() + 30000;
        while (seen < count && System.currentTimeMillis() < deadline)
            seen += consumer.poll(Duration.ofMillis(300)).count();
        return seen;
    }

    static boolean canAlter(Admin admin) {
        for (Method each : Admin.class.getMethods()) if (each.getName().equals("alterConsumerGroupOffsets")) return true;
        return false;
    }

    /** All groups, by the call that this version of the clients has. */
    static Collection<?> listed(Admin admin) throws Exception {
        Object result;
        try {
            result = Admin.class.getMethod("listGroups").invoke(admin);
        } catch (NoSuchMethodException error) {
            result = Admin.class.getMethod("listConsumerGroups").invoke(admin);
        }
        return (Collection<?>) ((KafkaFuture<?>) result.getClass().getMethod("all").invoke(result)).get(20, TimeUnit.SECONDS);
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        for (String protocol : arguments[1].split(",")) {
            String name = "java-" + arguments[2] + "-" + protocol;
            try (Admin admin = Admin.create(settings(servers))) {
                admin.createTopics(List.of(new NewTopic(name, 3, (short) 3))).all().get(20, TimeUnit.SECONDS);
                try (KafkaProducer<String, String> producer =
                        new KafkaProducer<>(settings(servers), new StringSerializer(), new StringSerializer())) {
                    for (int i = 0; i < 30; i++)
                        producer.send(new ProducerRecord<>(name, i % 3, "k", "v" + i)).get(20, TimeUnit.SECONDS);
                }
                TopicPartition place = new TopicPartition(name, 1);
                try (KafkaConsumer<String, String> first = member(servers, name, protocol)) {
                    first.subscribe(List.of(name));
                    check(read(first, 30) == 30, "all records");
                    first.commitSync();
                    ConsumerGroupDescription told =
                        admin.describeConsumerGroups(List.of(name)).all().get(20, TimeUnit.SECONDS).get(name);
                    check(told.members().size() == 1, "one member: " + told);
                    check(told.members().iterator().next().assignment().topicPartitions().size() == 3, "all partitions");
                }
                try (KafkaConsumer<String, String> second = member(servers, name, protocol)) {
                    check(second.committed(Set.of(place)).get(place).offset() == 10, "what was committed");
                    second.subscribe(List.of(name));
                    long deadline = System.currentTimeMillis() + 30000;
                    while (second.assignment().isEmpty() && System.currentTimeMillis() < deadline)
                        check(second.poll(Duration.ofMillis(300)).isEmpty(), "nothing is read twice");
                    check(second.position(place) == 10, "where it goes on");
                }
                Map<TopicPartition, OffsetAndMetadata> offsets =
                    admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get(20, TimeUnit.SECONDS);
                check(offsets.size() == 3 && offsets.get(place).offset() == 10, "offsets: " + offsets);
                long expected = canAlter(admin) ? 4 : 10;
                if (canAlter(admin)) // since 2.5
                    Admin.class.getMethod("alterConsumerGroupOffsets", String.class, Map.class)
                        .invoke(admin, name, Map.of(place, new OffsetAndMetadata(4)));
                long until = System.currentTimeMillis() + 20000;
                do offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get(20, TimeUnit.SECONDS);
                while (offsets.get(place).offset() != expected && System.currentTimeMillis() < until);
                admin.deleteConsumerGroupOffsets(name, Set.of(new TopicPartition(name, 0))).all().get(20, TimeUnit.SECONDS);
                offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get(20, TimeUnit.SECONDS);
                check(offsets.get(place).offset() == expected && offsets.size() == 2, "changed offsets: " + offsets);
                boolean isListed = false;
                for (Object each : listed(admin)) isListed |= each.toString().contains("'" + name + "'");
                check(isListed, "the list of groups");
                admin.deleteConsumerGroups(List.of(name)).all().get(20, TimeUnit.SECONDS);
                admin.deleteTopics(List.of(name)).all().get(20, TimeUnit.SECONDS);
            }
        }
        System.out.println("done");
    }
}
