import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.AbstractCollection;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;

/**
 * `make SEED COUNT`: random messages of every API and version, one a line: key, request or response, version, bytes.
 * `echo`: reads such lines, and prints each again as Kafka's own classes read and write it, or what they refuse it for.
 */
public class Messages {
    private final Random random;
    private final short version;

    private Messages(Random random, short version) {
        this.random = random;
        this.version = version;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("make")) {
            Random random = new Random(Long.parseLong(arguments[1]));
            for (ApiMessageType type : ApiMessageType.values())
                for (boolean isRequest : new boolean[] {true, false})
                    for (int count = 0; count < Integer.parseInt(arguments[2]); count++)
                        make(random, type, isRequest);
        } else {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine())
                System.out.println(echo(line.split(" ")));
        }
    }

    private static ApiMessage fresh(ApiMessageType type, boolean isRequest) {
        return isRequest ? type.newRequest() : type.newResponse();
    }

    private static void make(Random random, ApiMessageType type, boolean isRequest) throws Exception {
        ApiMessage empty;
        try {
            empty = fresh(type, isRequest);
        } catch (RuntimeException noSuchMessage) {
            return;
        }
        for (short version = empty.lowestSupportedVersion(); version <= empty.highestSupportedVersion(); version++) {
            ApiMessage message = fresh(type, isRequest);
            new Messages(random, version).fill(message, 0);
            print(type.apiKey(), isRequest, version, message);
        }
    }

    private static void print(int key, boolean isRequest, short version, Message message) {
        System.out.println(key + " " + (isRequest ? "request" : "response") + " " + version + " " + hex(message, version));
    }

    private static String hex(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }

    private static String echo(String[] words) {
        ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
        ApiMessage message = fresh(type, words[1].equals("request"));
        byte[] bytes = words.length > 3 ? HexFormat.of().parseHex(words[3]) : new byte[0];
        try {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            message.read(new ByteBufferAccessor(buffer), Short.parseShort(words[2]));
            if (buffer.hasRemaining())
                return "refused: bytes are left over: " + buffer.remaining();
            return hex(message, Short.parseShort(words[2]));
        } catch (RuntimeException refused) {
            return "refused: " + refused;
        }
    }

    /** Sets each field at random. One that this version cannot express keeps its default. */
    private void fill(Message message, int depth) throws Exception {
        Method[] methods = message.getClass().getMethods();
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method setter : methods) {
            if (!setter.getName().startsWith("set") || setter.getParameterCount() != 1)
                continue;
            String name = setter.getName().substring(3, 4).toLowerCase() + setter.getName().substring(4);
            Method getter;
            try {
                getter = message.getClass().getMethod(name);
            } catch (NoSuchMethodException linkOfACollection) {
                continue;
            }
            Object before = getter.invoke(message);
            Object value = value(setter.getGenericParameterTypes()[0], depth);
            try {
                setter.invoke(message, value);
            } catch (InvocationTargetException outOfItsRange) {
                continue;
            }
            try {
                hex(message, version);
            } catch (RuntimeException notInThisVersion) {
                setter.invoke(message, before);
            }
        }
    }

    private Object value(Type type, int depth) throws Exception {
        if (type == boolean.class) return random.nextBoolean();
        if (type == byte.class) return (byte) random.nextInt();
        if (type == short.class) return (short) random.nextInt();
        if (type == int.class) return random.nextInt();
        if (type == long.class) return random.nextLong();
        if (type == double.class) return random.nextDouble();
        if (type == Byte.class || type == Short.class || type == Integer.class || type == Long.class) return number((Class<?>) type);
        if (type == Uuid.class) return new Uuid(random.nextLong(), random.nextLong());
        if (type == String.class) return random.nextInt(6) == 0 ? null : "ж".repeat(random.nextInt(3)) + "x".repeat(length());
        if (type == byte[].class) return random.nextInt(6) == 0 ? null : bytes();
        if (type == ByteBuffer.class) return random.nextInt(6) == 0 ? null : ByteBuffer.wrap(bytes());
        if (type == BaseRecords.class) return random.nextInt(6) == 0 ? null : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes()));
        if (type instanceof ParameterizedType) {
            if (random.nextInt(8) == 0) return null;
            List<Object> list = new ArrayList<>();
            Type element = ((ParameterizedType) type).getActualTypeArguments()[0];
            for (int left = many(depth); left > 0; left--) list.add(notNull(element, depth + 1));
            return list;
        }
        Class<?> made = (Class<?>) type;
        if (Collection.class.isAssignableFrom(made)) {
            if (random.nextInt(8) == 0) return null;
            @SuppressWarnings("unchecked")
            AbstractCollection<Object> collection = (AbstractCollection<Object>) made.getDeclaredConstructor().newInstance();
            Type element = ((ParameterizedType) made.getGenericSuperclass()).getActualTypeArguments()[0];
            for (int left = many(depth); left > 0; left--) collection.add(notNull(element, depth + 1));
            return collection;
        }
        if (Message.class.isAssignableFrom(made)) {
            if (random.nextInt(6) == 0) return null;
            Message nested = (Message) made.getDeclaredConstructor().newInstance();
            fill(nested, depth + 1);
            return nested;
        }
        throw new IllegalArgumentException("a field of a type that nothing is made for: " + type);
    }

    private Object notNull(Type type, int depth) throws Exception {
        for (Object value = value(type, depth); ; value = value(type, depth))
            if (value != null) return value;
    }

    private Object number(Class<?> type) {
        if (type == Byte.class) return (byte) random.nextInt();
        if (type == Short.class) return (short) random.nextInt();
        return type == Integer.class ? (Object) random.nextInt() : (Object) random.nextLong();
    }

    private int length() {
        return random.nextInt(10) == 0 ? 120 + random.nextInt(300) : random.nextInt(12);
    }

    private int many(int depth) {
        return random.nextInt(depth > 1 ? 2 : 4);
    }

    private byte[] bytes() {
        byte[] made = new byte[length()];
        random.nextBytes(made);
        return made;
    }
}
