package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's own producer, consumer and admin client, driven line by line. Argument: host:port. */
final class ClientShell extends ProducerShell<byte[]> {
    private static final long DEADLINE_MS = 30_000;

    // A batch ends at flush() and nowhere else, so that the script decides what a batch holds.
    private static final Map<String, String> PRODUCER_DEFAULTS = Map.of(
            "linger.ms", "60000",
            "batch.size", "900000",
            "delivery.timeout.ms", "120000",
            "max.request.size", "1000000");

    private final Admin admin;

    private ClientShell(String bootstrap) {
        super(bootstrap, new ByteArraySerializer(), PRODUCER_DEFAULTS);
        this.admin = Admin.create(clientConfigs(null));
    }

    public static void main(String[] arguments) throws Exception {
        new ClientShell(arguments[0]).serveAndHalt();
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        switch (operation) {
            case "create_topic":
                return createTopic(command);
            case "alter_topic":
                return alterTopic(command);
            case "send":
                return send(command);
            case "delete_records":
                return deleteRecords(command);
            case "read":
                return read(command);
            case "offsets":
                return offsets(command);
            case "producers":
                return describeProducers(command);
            default:
                return super.run(operation, command);
        }
    }

    private static TopicPartition partition(JsonNode command) {
        JsonNode partition = command.get("partition");
        return new TopicPartition(command.get("topic").asText(), partition == null ? 0 : partition.asInt());
    }

    private JsonNode createTopic(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        Map<String, String> configs = new HashMap<>();
        properties(command.get("configs")).forEach((name, value) -> configs.put(name, value.toString()));
        int count = command.has("partitions") ? command.get("partitions").asInt() : 1;
        NewTopic newTopic = new NewTopic(topic, count, (short) 1).configs(configs);
        var result = admin.createTopics(List.of(newTopic));
        result.all().get();
        return JSON.createObjectNode().put("topic_id", result.topicId(topic).get().toString());
    }

    private JsonNode alterTopic(JsonNode command) throws Exception {
        var resource = new ConfigResource(
                ConfigResource.Type.TOPIC, command.get("topic").asText());
        List<AlterConfigOp> changes = new ArrayList<>();
        properties(command.get("configs")).forEach((name, value) -> changes.add(
                new AlterConfigOp(
                        new ConfigEntry(name, value.toString()),
                        AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        return done();
    }

    private JsonNode send(JsonNode command) throws Exception {
        TopicPartition partition = partition(command);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (JsonNode record : command.get("records")) {
            List<Header> headers = new ArrayList<>();
            if (record.has("headers")) {
                record.get("headers").forEach(pair ->
                        headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1)))));
            }
            Long timestamp = record.has("timestamp") ? record.get("timestamp").asLong() : null;
            records.add(new ProducerRecord<>(partition.topic(), partition.partition(),
                    timestamp, bytes(record.get("key")), bytes(record.get("value")), headers));
        }
        return sendAll(producer(command), records);
    }

    private JsonNode deleteRecords(JsonNode command) throws Exception {
        var deletion = Map.of(partition(command), RecordsToDelete.beforeOffset(command.get("offset").asLong()));
        long start = admin.deleteRecords(deletion).lowWatermarks().get(partition(command)).get().lowWatermark();
        return JSON.createObjectNode().put("log_start_offset", start);
    }

    private KafkaConsumer<byte[], byte[]> consumer(String isolation) {
        Map<String, Object> configs = clientConfigs(null);
        configs.put("isolation.level", isolation);
        configs.put("enable.auto.commit", "false");
        configs.put("auto.offset.reset", "none");
        configs.put("fetch.max.wait.ms", "100");
        var deserializer = new ByteArrayDeserializer();
        return new KafkaConsumer<>(configs, deserializer, deserializer);
    }

    /** Everything from the log start up to the end offset of the isolation level. */
    private JsonNode read(JsonNode command) throws Exception {
        TopicPartition partition = partition(command);
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(command.get("isolation").asText())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            answer.put("start_offset", consumer.position(partition));
            while (consumer.position(partition) < end) {
                if (System.currentTimeMillis() > deadline) {
                    throw new TimeoutException("consumer stands at " + consumer.position(partition)
                            + " of " + partition + ", end offset " + end);
                }
                consumer.poll(Duration.ofMillis(200)).records(partition).forEach(r -> records.add(describe(r)));
            }
            answer.put("end_offset", end);
        }
        return answer;
    }

    private static ObjectNode describe(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode described = JSON.createObjectNode();
        described.put("offset", record.offset());
        described.put("timestamp", record.timestamp());
        described.put("timestamp_type", record.timestampType().toString());
        described.put("leader_epoch", record.leaderEpoch().orElse(-1));
        described.put("key", text(record.key()));
        described.put("value", text(record.value()));
        described.set("headers", headers(record.headers()));
        return described;
    }

    private JsonNode offsets(JsonNode command) throws Exception {
        TopicPartition partition = partition(command);
        ObjectNode answer = JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> uncommitted = consumer("read_uncommitted");
                KafkaConsumer<byte[], byte[]> committed = consumer("read_committed")) {
            answer.put("log_start_offset", uncommitted.beginningOffsets(List.of(partition)).get(partition));
            answer.put("high_watermark", uncommitted.endOffsets(List.of(partition)).get(partition));
            answer.put("last_stable_offset", committed.endOffsets(List.of(partition)).get(partition));
            ArrayNode found = answer.putArray("for_times");
            for (JsonNode time : command.get("times")) {
                OffsetAndTimestamp hit =
                        uncommitted.offsetsForTimes(Map.of(partition, time.asLong())).get(partition);
                ArrayNode row = found.addArray().add(time.asLong());
                row.add(hit == null ? -1 : hit.offset()).add(hit == null ? -1 : hit.timestamp());
            }
        }
        ListOffsetsResultInfo largest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp()))
                .partitionResult(partition).get();
        answer.putArray("max_timestamp").add(largest.offset()).add(largest.timestamp());
        return answer;
    }

    private JsonNode describeProducers(JsonNode command) throws Exception {
        var states = admin.describeProducers(List.of(partition(command))).partitionResult(partition(command)).get();
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode producers = answer.putArray("producers");
        for (ProducerState state : states.activeProducers()) {
            producers.addObject()
                    .put("producer_id", state.producerId())
                    .put("epoch", state.producerEpoch())
                    .put("last_sequence", state.lastSequence())
                    .put("last_timestamp", state.lastTimestamp())
                    .put("coordinator_epoch", state.coordinatorEpoch().orElse(-1))
                    .put("current_txn_first_offset", state.currentTransactionStartOffset().orElse(-1));
        }
        return answer;
    }
}
