import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;

/** What members of the classic protocol say, by Kafka's own client: a line has name, version and bytes in hex. */
public final class EmbeddedProtocol {
    public static void main(String[] args) {
        List<TopicPartition> owned = List.of(new TopicPartition("a", 0), new TopicPartition("a", 2),
            new TopicPartition("größe", 1));
        Subscription said = new Subscription(List.of("a", "größe"), ByteBuffer.wrap(new byte[] {1, 2}), owned, 7,
            Optional.of("rack"));
        Subscription bare = new Subscription(List.of());
        Assignment given = new Assignment(owned, ByteBuffer.wrap(new byte[] {9}));
        Assignment nothing = new Assignment(List.of());
        for (short version = 0; version <= 3; version++) {
            print("subscription", version, ConsumerProtocol.serializeSubscription(said, version));
            print("subscription_bare", version, ConsumerProtocol.serializeSubscription(bare, version));
            print("assignment", version, ConsumerProtocol.serializeAssignment(given, version));
            print("assignment_bare", version, ConsumerProtocol.serializeAssignment(nothing, version));
        }
    }

    private static void print(String name, int version, ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        System.out.println(name + " " + version + " " + HexFormat.of().formatHex(copy));
    }
}
