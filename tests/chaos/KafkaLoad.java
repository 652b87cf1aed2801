import java.io.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;

/**
 * Writes to a topic or reads it until its standard input ends: `write|read SERVERS TOPIC NAME ACKS PARTITIONS`.
 *
 * Each acknowledgement, failure and record is a line: `ready`, `ack PARTITION OFFSET SEQUENCE MILLISECONDS`,
 * `failed CLASS`, `saw PARTITION OFFSET VALUE`, `error CLASS`, `gone TEXT`, `done SENT`.
 */
public class KafkaLoad {
    static final int BURST = 10, IN_FLIGHT = 2000;
    static volatile boolean isOver;
    static final StringBuilder said = new StringBuilder();

    static void say(String line) {
        synchronized (said) {
            said.append(line).append('\n');
        }
    }

    static void tell() {
        String text;
        synchronized (said) {
            text = said.toString();
            said.setLength(0);
        }
        System.out.print(text);
        System.out.flush();
    }

    static Properties settings(String servers, String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("request.timeout.ms", "5000");
        for (int i = 0; i < more.length; i += 2) made.put(more[i], more[i + 1]);
        return made;
    }

    static void write(String servers, String topic, String name, String acks, int partitions) throws Exception {
        String serializer = "org.apache.kafka.common.serialization.StringSerializer";
        Properties given = settings(servers, "acks", acks, "enable.idempotence", "" + acks.equals("all"),
            "linger.ms", "2", "delivery.timeout.ms", "600000", "max.block.ms", "120000",
            "key.serializer", serializer, "value.serializer", serializer);
        AtomicInteger underWay = new AtomicInteger();
        int sequence = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(given)) {
            say("ready");
            while (!isOver) {
                for (int i = 0; i < BURST && underWay.get() < IN_FLIGHT; i++) {
                    int number = sequence++, partition = number % partitions;
                    long begun = System.nanoTime();
                    underWay.incrementAndGet();
                    producer.send(new ProducerRecord<>(topic, partition, null, name + ":" + number), (done, error) -> {
                        underWay.decrementAndGet();
                        double took = (System.nanoTime() - begun) / 1e6;
                        if (error != null) say("failed " + error.getClass().getSimpleName());
                        else say("ack " + partition + " " + done.offset() + " " + number + " " + took);
                    });
                }
                tell();
                Thread.sleep(10);
            }
            producer.flush();
        }
        say("done " + sequence);
    }

    static void read(String servers, String topic, int partitions) {
        String deserializer = "org.apache.kafka.common.serialization.StringDeserializer";
        Properties given = settings(servers, "auto.offset.reset", "none", "enable.auto.commit", "false",
            "key.deserializer", deserializer, "value.deserializer", deserializer);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(given)) {
            List<TopicPartition> places = new ArrayList<>();
            for (int i = 0; i < partitions; i++) places.add(new TopicPartition(topic, i));
            consumer.assign(places);
            for (TopicPartition each : places) consumer.seek(each, 0);
            say("ready");
            while (!isOver) {
                try {
                    for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200)))
                        say("saw " + each.partition() + " " + each.offset() + " " + each.value());
                } catch (OffsetOutOfRangeException error) {
                    say("gone " + error);
                    break;
                } catch (org.apache.kafka.common.KafkaException error) {
                    say("error " + error.getClass().getSimpleName());
                }
                tell();
            }
        }
        say("done 0");
    }

    public static void main(String[] given) throws Exception {
        Thread end = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException error) {
                // It ends as well.
            }
            isOver = true;
        });
        end.setDaemon(true);
        end.start();
        int partitions = Integer.parseInt(given[5]);
        if (given[0].equals("write")) write(given[1], given[2], given[3], given[4], partitions);
        else read(given[1], given[2], partitions);
        tell();
    }
}
