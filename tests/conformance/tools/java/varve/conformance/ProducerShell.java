package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.Serializer;

/** What shells of clients share: named producers with their transactions, connected to one broker. */
abstract class ProducerShell<T> extends Shell {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(20);

    private final String bootstrap;
    private final Serializer<T> serializer;
    private final Map<String, String> producerDefaults;
    private final Map<String, KafkaProducer<T, T>> producers = new HashMap<>();

    ProducerShell(String bootstrap, Serializer<T> serializer, Map<String, String> producerDefaults) {
        this.bootstrap = bootstrap;
        this.serializer = serializer;
        this.producerDefaults = producerDefaults;
    }

    /** Serves until the input ends. Members and transactions left open on purpose are not ended in good order. */
    final void serveAndHalt() throws Exception {
        serve();
        Runtime.getRuntime().halt(0);
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        switch (operation) {
            case "open_producer":
                openProducer(command);
                return done();
            case "begin":
                producer(command).beginTransaction();
                return done();
            case "commit":
                producer(command).commitTransaction();
                return done();
            case "abort":
                producer(command).abortTransaction();
                return done();
            case "close_producer":
                producers.remove(command.get("producer").asText()).close(CLOSE_TIMEOUT);
                return done();
            default:
                throw new IllegalArgumentException("unknown operation " + operation);
        }
    }

    static ObjectNode done() {
        return JSON.createObjectNode().put("done", true);
    }

    final Map<String, Object> clientConfigs(JsonNode extra) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("bootstrap.servers", bootstrap);
        configs.putAll(properties(extra));
        return configs;
    }

    final KafkaProducer<T, T> producer(JsonNode command) {
        return producers.get(command.get("producer").asText());
    }

    /** Sends and flushes, and answers with the offsets. */
    final JsonNode sendAll(KafkaProducer<T, T> producer, List<ProducerRecord<T, T>> records) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (ProducerRecord<T, T> record : records) {
            sent.add(producer.send(record));
        }
        producer.flush();
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get().offset());
        }
        return answer;
    }

    private void openProducer(JsonNode command) {
        Map<String, Object> configs = clientConfigs(command.get("configs"));
        producerDefaults.forEach(configs::putIfAbsent);
        var producer = new KafkaProducer<>(configs, serializer, serializer);
        if (configs.containsKey("transactional.id")) {
            producer.initTransactions();
        }
        producers.put(command.get("producer").asText(), producer);
    }
}
