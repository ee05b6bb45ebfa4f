package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/**
 * Apache Kafka's own code for the topic __remote_log_metadata: its serde, its choice of a partition, and the cache
 * that a broker fills from the topic.
 */
final class MetadataShell extends Shell {
    private final RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
    private final Map<String, RemoteLogMetadataCache> caches = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        new MetadataShell().serve();
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        switch (operation) {
            case "decode": {
                RemoteLogMetadata found = serde.deserialize(bytes(command.get("value")));
                return describe(found).put("again", text(serde.serialize(found)));
            }
            case "encode":
                return JSON.createObjectNode().put("value", text(serde.serialize(make(command))));
            case "partition":
                return JSON.createObjectNode()
                        .put("partition", new RemoteLogMetadataTopicPartitioner(command.get("count").asInt())
                                .metadataPartition(home(command)));
            case "fill":
                return fill(command);
            case "look":
                return look(caches.get(command.get("cache").asText()), command);
            default:
                throw new IllegalArgumentException("unknown operation " + operation);
        }
    }

    private static TopicIdPartition home(JsonNode node) {
        return new TopicIdPartition(
                Uuid.fromString(node.get("topic_id").asText()),
                new TopicPartition(node.get("topic").asText(), node.get("partition").asInt()));
    }

    private static RemoteLogMetadata make(JsonNode node) {
        int broker = node.get("broker_id").asInt();
        long at = node.get("at_ms").asLong();
        if (node.get("kind").asText().equals("PartitionDelete")) {
            RemotePartitionDeleteState state = RemotePartitionDeleteState.forId((byte) node.get("state").asInt());
            return new RemotePartitionDeleteMetadata(home(node), state, at, broker);
        }
        Uuid id = Uuid.fromString(node.get("id").asText());
        Optional<CustomMetadata> custom = Optional.ofNullable(bytes(node.get("custom"))).map(CustomMetadata::new);
        RemoteLogSegmentState state = RemoteLogSegmentState.forId((byte) node.get("state").asInt());
        if (node.get("kind").asText().equals("SegmentUpdate")) {
            return new RemoteLogSegmentMetadataUpdate(
                    new RemoteLogSegmentId(home(node), id), at, custom, state, broker);
        }
        Map<Integer, Long> epochs = new TreeMap<>();
        node.get("epochs").forEach(pair -> epochs.put(pair.get(0).asInt(), pair.get(1).asLong()));
        long start = node.get("start_offset").asLong();
        long end = node.get("end_offset").asLong();
        long maxTimestamp = node.get("max_timestamp").asLong();
        int size = node.get("size").asInt();
        boolean isEmpty = node.get("is_txn_index_empty").asBoolean();
        if (node.get("kind").asText().equals("SegmentSnapshot")) {
            return new RemoteLogSegmentMetadataSnapshot(
                    id, start, end, maxTimestamp, broker, at, size, custom, state, epochs, isEmpty);
        }
        return new RemoteLogSegmentMetadata(
                new RemoteLogSegmentId(home(node), id), start, end, maxTimestamp, broker, at, size, custom, state,
                epochs, isEmpty);
    }

    private static ObjectNode describe(RemoteLogMetadata found) {
        ObjectNode node = JSON.createObjectNode();
        node.put("broker_id", found.brokerId()).put("at_ms", found.eventTimestampMs());
        if (found instanceof RemoteLogSegmentMetadata) {
            RemoteLogSegmentMetadata segment = (RemoteLogSegmentMetadata) found;
            describe(node.put("kind", "SegmentEvent"), segment.remoteLogSegmentId());
            node.put("start_offset", segment.startOffset()).put("end_offset", segment.endOffset());
            node.put("max_timestamp", segment.maxTimestampMs()).put("size", segment.segmentSizeInBytes());
            node.put("is_txn_index_empty", segment.isTxnIdxEmpty());
            node.put("custom", text(segment.customMetadata().map(CustomMetadata::value).orElse(null)));
            node.put("state", segment.state().id());
            ArrayNode epochs = node.putArray("epochs");
            segment.segmentLeaderEpochs().forEach((epoch, offset) -> epochs.addArray().add(epoch).add(offset));
        } else if (found instanceof RemoteLogSegmentMetadataUpdate) {
            RemoteLogSegmentMetadataUpdate update = (RemoteLogSegmentMetadataUpdate) found;
            describe(node.put("kind", "SegmentUpdate"), update.remoteLogSegmentId());
            node.put("custom", text(update.customMetadata().map(CustomMetadata::value).orElse(null)));
            node.put("state", update.state().id());
        } else if (found instanceof RemotePartitionDeleteMetadata) {
            RemotePartitionDeleteMetadata deletion = (RemotePartitionDeleteMetadata) found;
            describe(node.put("kind", "PartitionDelete"), deletion.topicIdPartition());
            node.put("state", deletion.state().id());
        } else {
            node.put("kind", found.getClass().getSimpleName());
        }
        return node;
    }

    private static void describe(ObjectNode node, RemoteLogSegmentId id) {
        describe(node.put("id", id.id().toString()), id.topicIdPartition());
    }

    private static void describe(ObjectNode node, TopicIdPartition home) {
        node.put("topic", home.topic()).put("topic_id", home.topicId().toString()).put("partition", home.partition());
    }

    /** Hands events to a cache as a broker does that reads the topic; the first refusal is the answer. */
    private JsonNode fill(JsonNode command) throws Exception {
        RemoteLogMetadataCache cache =
                caches.computeIfAbsent(command.get("cache").asText(), name -> new RemoteLogMetadataCache());
        int taken = 0;
        for (JsonNode value : command.get("values")) {
            RemoteLogMetadata event = serde.deserialize(bytes(value));
            if (event instanceof RemoteLogSegmentMetadata) {
                call(cache, "addCopyInProgressSegment", RemoteLogSegmentMetadata.class, event);
            } else {
                call(cache, "updateRemoteLogSegmentMetadata", RemoteLogSegmentMetadataUpdate.class, event);
            }
            taken++;
        }
        return JSON.createObjectNode().put("taken", taken);
    }

    /** Every segment the cache knows, and which one it reads for each asked epoch and offset. */
    private static JsonNode look(RemoteLogMetadataCache cache, JsonNode command) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode segments = answer.putArray("segments");
        Iterator<?> listed = (Iterator<?>) invoke(cache, "listAllRemoteLogSegments", new Class<?>[0]);
        listed.forEachRemaining(one -> segments.add(describe((RemoteLogSegmentMetadata) one)));
        ArrayNode reads = answer.putArray("reads");
        for (JsonNode pair : command.get("reads")) {
            Optional<?> found = (Optional<?>) invoke(
                    cache,
                    "remoteLogSegmentMetadata",
                    new Class<?>[] {int.class, long.class},
                    pair.get(0).asInt(),
                    pair.get(1).asLong());
            reads.add(found.map(one -> ((RemoteLogSegmentMetadata) one).remoteLogSegmentId().id().toString())
                    .orElse(null));
        }
        return answer;
    }

    private static void call(RemoteLogMetadataCache cache, String name, Class<?> type, Object event) throws Exception {
        invoke(cache, name, new Class<?>[] {type}, event);
    }

    /** The cache's methods are for its own package. */
    private static Object invoke(RemoteLogMetadataCache cache, String name, Class<?>[] types, Object... values)
            throws Exception {
        Method method = RemoteLogMetadataCache.class.getDeclaredMethod(name, types);
        method.setAccessible(true);
        try {
            return method.invoke(cache, values);
        } catch (InvocationTargetException failure) {
            throw failure.getCause() instanceof Exception ? (Exception) failure.getCause() : failure;
        }
    }
}
