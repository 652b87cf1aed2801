import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.*;

/** Records of `__consumer_offsets` by Kafka's own serializers: a line has name, version, key and value, both in hex. */
public final class GroupRecords {
    private static final Uuid FIRST = new Uuid(0x0123456789abcdefL, 0x0fedcba987654321L);
    private static final Uuid SECOND = new Uuid(0x7fffffffffffffffL, -1L);

    public static void main(String[] args) {
        OffsetCommitKey offset = new OffsetCommitKey().setGroup("größe").setTopic("orders").setPartition(7);
        OffsetCommitValue committed = new OffsetCommitValue().setOffset(123456789012L).setLeaderEpoch(5)
            .setMetadata("from épée").setCommitTimestamp(1700000000001L);
        print("offset", 0, offset, committed);
        print("offset_expiring", 1, offset, committed.duplicate().setExpireTimestamp(1700000600000L));
        print("offset", 2, offset, committed);
        print("offset", 3, offset, committed);
        print("offset", 4, offset, committed);
        print("offset_of_id", 4, offset, committed.duplicate().setTopicId(FIRST));

        GroupMetadataKey classic = new GroupMetadataKey().setGroup("classic");
        GroupMetadataValue stable = new GroupMetadataValue().setProtocolType("consumer").setGeneration(9)
            .setProtocol("range").setLeader("m-1").setCurrentStateTimestamp(1700000000002L)
            .setMembers(List.of(
                new GroupMetadataValue.MemberMetadata().setMemberId("m-1").setGroupInstanceId("i-1").setClientId("c")
                    .setClientHost("/127.0.0.1").setRebalanceTimeout(300000).setSessionTimeout(45000)
                    .setSubscription(new byte[] {0, 1, 2}).setAssignment(new byte[] {3, 4}),
                new GroupMetadataValue.MemberMetadata().setMemberId("m-2").setGroupInstanceId(null).setClientId("")
                    .setClientHost("").setRebalanceTimeout(1).setSessionTimeout(2)
                    .setSubscription(new byte[0]).setAssignment(new byte[0])));
        for (int version = 0; version <= 4; version++) {
            print("classic", version, classic, stable);
            print("classic_empty", version, classic, new GroupMetadataValue().setProtocolType("consumer")
                .setGeneration(10).setProtocol(null).setLeader(null).setCurrentStateTimestamp(5L).setMembers(List.of()));
        }

        ConsumerGroupMetadataKey group = new ConsumerGroupMetadataKey().setGroupId("modern");
        print("group", 0, group, new ConsumerGroupMetadataValue().setEpoch(300));
        print("group_hashed", 0, group, new ConsumerGroupMetadataValue().setEpoch(300).setMetadataHash(-3L));
        print("topics", 0, new ConsumerGroupPartitionMetadataKey().setGroupId("modern"),
            new ConsumerGroupPartitionMetadataValue().setTopics(List.of(
                new ConsumerGroupPartitionMetadataValue.TopicMetadata().setTopicId(FIRST).setTopicName("orders")
                    .setNumPartitions(2).setPartitionMetadata(List.of(
                        new ConsumerGroupPartitionMetadataValue.PartitionMetadata().setPartition(1)
                            .setRacks(List.of("r1", "r2")))))));
        ConsumerGroupMemberMetadataKey member = new ConsumerGroupMemberMetadataKey().setGroupId("modern").setMemberId("m");
        ConsumerGroupMemberMetadataValue said = new ConsumerGroupMemberMetadataValue().setInstanceId("i").setRackId("r")
            .setClientId("c").setClientHost("/10.0.0.1").setSubscribedTopicNames(List.of("a", "b"))
            .setSubscribedTopicRegex("a.*").setRebalanceTimeoutMs(300000).setServerAssignor("uniform");
        print("member", 0, member, said);
        print("member_classic", 0, member, said.duplicate().setClassicMemberMetadata(
            new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(45000)
                .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("range")
                    .setMetadata(new byte[] {0, 3, 9})))));
        print("member_bare", 0, member, new ConsumerGroupMemberMetadataValue().setInstanceId(null).setRackId(null)
            .setClientId("").setClientHost("").setSubscribedTopicNames(List.of()).setSubscribedTopicRegex(null)
            .setServerAssignor(null));
        print("target_epoch", 0, new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("modern"),
            new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(300));
        print("target", 0, new ConsumerGroupTargetAssignmentMemberKey().setGroupId("modern").setMemberId("m"),
            new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
                new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(FIRST).setPartitions(List.of(0, 200)),
                new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(SECOND).setPartitions(List.of()))));
        print("current", 0, new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("modern").setMemberId("m"),
            new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(300).setPreviousMemberEpoch(299)
                .setState((byte) 1)
                .setAssignedPartitions(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                    .setTopicId(FIRST).setPartitions(List.of(0, 1))))
                .setPartitionsPendingRevocation(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                    .setTopicId(SECOND).setPartitions(List.of(5)))));
        print("regex", 0, new ConsumerGroupRegularExpressionKey().setGroupId("modern").setRegularExpression("a.*"),
            new ConsumerGroupRegularExpressionValue().setTopics(List.of("a", "ab")).setVersion(12).setTimestamp(13));
    }

    private static void print(String name, int version, ApiMessage key, ApiMessage value) {
        HexFormat hex = HexFormat.of();
        System.out.println(name + " " + version
            + " " + hex.formatHex(MessageUtil.toCoordinatorTypePrefixedBytes(key))
            + " " + hex.formatHex(MessageUtil.toVersionPrefixedBytes((short) version, value)));
    }
}
