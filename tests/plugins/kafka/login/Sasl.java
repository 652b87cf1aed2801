import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.*;

/** Logs in by each mechanism, is refused, and keeps users; ends with "done" if all is as it must be. */
public class Sasl {
    static String servers;

    static Properties as(String mechanism, String name, String password) {
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("security.protocol", "SASL_PLAINTEXT");
        made.put("sasl.mechanism", mechanism);
        made.put("sasl.jaas.config", "org.apache.kafka.common.security." + module
            + " required username=\"" + name + "\" password=\"" + password + "\";");
        made.put("request.timeout.ms", "15000");
        made.put("default.api.timeout.ms", "15000");
        return made;
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static String write(Properties given) throws Exception {
        given.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        given.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        given.put("max.block.ms", "15000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(given)) {
            producer.send(new ProducerRecord<>("sasl", "k", "v")).get(20, TimeUnit.SECONDS);
            return "";
        } catch (ExecutionException | KafkaException refused) {
            Throwable cause = refused.getCause() == null ? refused : refused.getCause();
            return cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
    }

    static void fails(Class<?> kind, Future<?> asked) throws Exception {
        try {
            asked.get(20, TimeUnit.SECONDS);
        } catch (ExecutionException refused) {
            check(kind.isInstance(refused.getCause()), kind + " expected, not " + refused.getCause());
            return;
        }
        throw new AssertionError(kind + " expected");
    }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        String name = arguments[1], password = arguments[2];
        for (String mechanism : List.of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")) {
            check(write(as(mechanism, name, password)).isEmpty(), mechanism);
            String wrong = write(as(mechanism, name, "wrong")), nobody = write(as(mechanism, "nobody", password));
            check(wrong.startsWith("SaslAuthenticationException") && wrong.equals(nobody), wrong + " / " + nobody);
        }
        try (Admin admin = Admin.create(as("SCRAM-SHA-512", name, password))) {
            ScramMechanism strong = ScramMechanism.SCRAM_SHA_512, weak = ScramMechanism.SCRAM_SHA_256;
            admin.alterUserScramCredentials(List.of(
                new UserScramCredentialUpsertion("ada", new ScramCredentialInfo(strong, 5000), "engine"),
                new UserScramCredentialUpsertion("ada", new ScramCredentialInfo(weak, 4096), "engine"))).all().get();
            check(write(as("SCRAM-SHA-256", "ada", "engine")).isEmpty(), "ada by SCRAM-SHA-256");
            check(write(as("PLAIN", "ada", "engine")).isEmpty(), "ada by PLAIN");
            Map<String, UserScramCredentialsDescription> all = admin.describeUserScramCredentials().all().get();
            check(all.keySet().equals(Set.of("ada", name)), all.toString());
            check(Set.copyOf(all.get("ada").credentialInfos()).equals(Set.of(
                new ScramCredentialInfo(strong, 5000), new ScramCredentialInfo(weak, 4096))), all.toString());
            fails(ResourceNotFoundException.class,
                admin.describeUserScramCredentials(List.of("nobody")).description("nobody"));
            admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("ada", weak))).all().get();
            check(!write(as("SCRAM-SHA-256", "ada", "engine")).isEmpty(), "ada without SCRAM-SHA-256");
            check(write(as("SCRAM-SHA-512", "ada", "engine")).isEmpty(), "ada by SCRAM-SHA-512");
            fails(ResourceNotFoundException.class, admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion("ada", weak))).all());
            fails(UnacceptableCredentialException.class, admin.alterUserScramCredentials(List.of(
                new UserScramCredentialUpsertion("eve", new ScramCredentialInfo(strong, 100), "x"))).all());
            admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("ada", strong))).all().get();
            check(admin.describeUserScramCredentials().all().get().keySet().equals(Set.of(name)), "ada is gone");
        }
        System.out.println("done");
    }
}
