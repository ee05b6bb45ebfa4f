package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Apache Kafka's consumers as members of groups, and producers that commit for them. Argument: host:port. */
final class GroupShell extends ProducerShell<String> {
    private final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();

    private GroupShell(String bootstrap) {
        super(bootstrap, new StringSerializer(), Map.of());
    }

    public static void main(String[] arguments) throws Exception {
        new GroupShell(arguments[0]).serveAndHalt();
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        switch (operation) {
            case "open_consumer":
                return openConsumer(command);
            case "poll":
                return poll(command);
            case "commit_offsets":
                consumer(command).commitSync(Duration.ofSeconds(20));
                return done();
            case "committed":
                return committed(command);
            case "close_consumer":
                consumers.remove(command.get("consumer").asText()).close(CloseOptions.timeout(Duration.ofSeconds(20)));
                return done();
            case "send":
                return send(command);
            case "send_offsets":
                return sendOffsets(command);
            default:
                return super.run(operation, command);
        }
    }

    private KafkaConsumer<String, String> consumer(JsonNode command) {
        return consumers.get(command.get("consumer").asText());
    }

    private JsonNode openConsumer(JsonNode command) {
        Map<String, Object> configs = clientConfigs(command.get("configs"));
        configs.putIfAbsent("enable.auto.commit", "false");
        configs.putIfAbsent("auto.offset.reset", "earliest");
        configs.putIfAbsent("fetch.max.wait.ms", "100");
        configs.putIfAbsent("metadata.max.age.ms", "1000");
        var consumer = new KafkaConsumer<>(configs, new StringDeserializer(), new StringDeserializer());
        if (command.has("pattern") && "consumer".equals(configs.get("group.protocol"))) {
            consumer.subscribe(new SubscriptionPattern(command.get("pattern").asText()));
        } else if (command.has("pattern")) {
            consumer.subscribe(Pattern.compile(command.get("pattern").asText()));
        } else {
            consumer.subscribe(List.of(command.get("topic").asText()));
        }
        consumers.put(command.get("consumer").asText(), consumer);
        return done();
    }

    /** What a member gets in one poll, and what it has after it. */
    private JsonNode poll(JsonNode command) {
        KafkaConsumer<String, String> consumer = consumer(command);
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode values = answer.putArray("values");
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
            values.add(record.value());
        }
        ArrayNode assignment = answer.putArray("assignment");
        consumer.assignment().stream().map(TopicPartition::toString).sorted().forEach(assignment::add);
        answer.put("member", consumer.groupMetadata().memberId());
        answer.put("generation", consumer.groupMetadata().generationId());
        return answer;
    }

    private JsonNode committed(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        KafkaConsumer<String, String> consumer = consumer(command);
        consumer.committed(consumer.assignment()).forEach((partition, offset) ->
                answer.put(partition.toString(), offset == null ? -1 : offset.offset()));
        return answer;
    }

    private JsonNode send(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (JsonNode value : command.get("values")) {
            records.add(new ProducerRecord<>(topic, value.asText(), value.asText()));
        }
        return sendAll(producer(command), records);
    }

    /** The positions of a member become part of the producer's transaction. */
    private JsonNode sendOffsets(JsonNode command) {
        KafkaConsumer<String, String> consumer = consumer(command);
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : consumer.assignment()) {
            offsets.put(partition, new OffsetAndMetadata(consumer.position(partition)));
        }
        producer(command).sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        return done();
    }
}
