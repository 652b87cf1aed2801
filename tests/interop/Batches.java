import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/** Kafka's own code for record batches: `decode FILE` prints every record, `encode FILE` writes some batches. */
public final class Batches {
    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[1]);
        if (args[0].equals("decode")) {
            decode(file);
        } else {
            encode(file);
        }
    }

    private static void decode(Path file) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file)));
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                out.append(batch.compressionType().name).append('\t').append(batch.partitionLeaderEpoch())
                    .append('\t').append(batch.producerId()).append('\t').append(batch.isTransactional())
                    .append('\t').append(record.sequence()).append('\t').append(record.offset())
                    .append('\t').append(record.timestamp())
                    .append('\t').append(hex(record.key())).append('\t').append(hex(record.value()));
                for (Header header : record.headers()) {
                    out.append('\t').append(header.key()).append('=')
                        .append(header.value() == null ? "null" : HexFormat.of().formatHex(header.value()));
                }
                out.append('\n');
            }
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "null";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HexFormat.of().formatHex(copy);
    }

    private static void encode(Path file) throws Exception {
        long offset = 0;
        try (OutputStream out = Files.newOutputStream(file)) {
            for (CompressionType type : CompressionType.values()) {
                MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20),
                    RecordBatch.MAGIC_VALUE_V2, Compression.of(type).build(), TimestampType.CREATE_TIME, offset,
                    RecordBatch.NO_TIMESTAMP, 77L, (short) 3, 5, true, 9);
                for (int i = 0; i < 2000; i++) {
                    byte[] key = i % 3 == 0 ? null : ("key-" + i).getBytes(StandardCharsets.UTF_8);
                    byte[] value = i % 5 == 0 ? null : ("value ".repeat(i % 40) + i).getBytes(StandardCharsets.UTF_8);
                    Header[] headers = i % 7 == 0
                        ? new Header[] {new RecordHeader("größe", new byte[] {1, 2}), new RecordHeader("nil", (byte[]) null)}
                        : new Header[0];
                    builder.append(1_700_000_000_000L + i, key, value, headers);
                }
                offset = write(out, builder.build(), offset);
                MemoryRecords marker = MemoryRecords.withEndTransactionMarker(offset, 1_700_000_009_000L, 9, 77L,
                    (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 1));
                offset = write(out, marker, offset);
            }
        }
    }

    private static long write(OutputStream out, MemoryRecords records, long offset) throws Exception {
        ByteBuffer buffer = records.buffer();
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        out.write(copy);
        for (MutableRecordBatch batch : records.batches()) {
            offset = batch.nextOffset();
        }
        return offset;
    }
}
