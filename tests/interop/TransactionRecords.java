import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.generated.*;

/** Records of `__transaction_state` by Kafka's own serializers: a line has name, version, key and value, both in hex. */
public final class TransactionRecords {
    public static void main(String[] args) {
        TransactionLogValue empty = new TransactionLogValue().setProducerId(1234567890123L).setProducerEpoch((short) 0)
            .setTransactionTimeoutMs(60000).setTransactionStatus((byte) 0).setTransactionPartitions(null)
            .setTransactionLastUpdateTimestampMs(1700000000001L).setTransactionStartTimestampMs(-1L);
        TransactionLogValue ongoing = empty.duplicate().setTransactionStatus((byte) 1).setProducerEpoch((short) 7)
            .setTransactionPartitions(List.of(
                new TransactionLogValue.PartitionsSchema().setTopic("größe").setPartitionIds(List.of(0, 300)),
                new TransactionLogValue.PartitionsSchema().setTopic("orders").setPartitionIds(List.of(2))))
            .setTransactionStartTimestampMs(1700000000000L);
        for (int version = 0; version <= 1; version++) {
            print("empty", version, empty);
            print("ongoing", version, ongoing);
        }
        print("prepared", 1, ongoing.duplicate().setTransactionStatus((byte) 2).setProducerEpoch((short) 32767)
            .setNextProducerId(99L).setClientTransactionVersion((short) 2));
        print("complete", 1, empty.duplicate().setTransactionStatus((byte) 5).setTransactionPartitions(List.of())
            .setPreviousProducerId(1234567890123L).setProducerId(99L).setClientTransactionVersion((short) 2));
    }

    private static void print(String name, int version, ApiMessage value) {
        HexFormat hex = HexFormat.of();
        TransactionLogKey key = new TransactionLogKey().setTransactionalId("etl-épée");
        System.out.println(name + " " + version + " "
            + hex.formatHex(MessageUtil.toVersionPrefixedBytes((short) 0, key)) + " "
            + hex.formatHex(MessageUtil.toVersionPrefixedBytes((short) version, value)));
    }
}
