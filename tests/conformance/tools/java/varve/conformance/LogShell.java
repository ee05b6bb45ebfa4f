package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Apache Kafka's own partition log (UnifiedLog and its loader) over a directory, driven line by line. */
final class LogShell extends Shell {
    private static final int PRODUCER_EXPIRATION_MS = Integer.MAX_VALUE;

    private final KafkaScheduler scheduler = new KafkaScheduler(1);
    private final BrokerTopicStats stats = new BrokerTopicStats(false);
    private final Map<String, UnifiedLog> logs = new HashMap<>();
    private final Map<String, SettableTime> clocks = new HashMap<>();
    private final CleaningTool cleaning = new CleaningTool();

    public static void main(String[] arguments) throws Exception {
        LogShell shell = new LogShell();
        shell.scheduler.startup();
        shell.serve();
        Runtime.getRuntime().halt(0);
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        if (operation.equals("parse")) {
            return parse(bytes(command.get("batch")));
        }
        String directory = command.get("directory").asText();
        if (operation.equals("open")) {
            UnifiedLog opened = open(directory, command);
            logs.put(directory, opened);
            return report(opened);
        }
        UnifiedLog log = logs.get(directory);
        switch (operation) {
            case "report":
                return report(log);
            case "append":
                return append(log, command);
            case "read":
                return read(log, FetchIsolation.valueOf(command.get("isolation").asText()));
            case "roll":
                return JSON.createObjectNode().put("base_offset", log.roll().baseOffset());
            case "flush":
                log.flush(false);
                return report(log);
            case "truncate":
                log.truncateTo(command.get("offset").asLong());
                return report(log);
            case "raise_high_watermark":
                log.updateHighWatermark(command.get("offset").asLong());
                return report(log);
            case "raise_log_start":
                log.maybeIncrementLogStartOffset(
                        command.get("offset").asLong(), LogStartOffsetIncrementReason.ClientRecordDeletion);
                return report(log);
            case "select":
                clocks.get(directory).stopAt(command.get("now_ms").asLong());
                return cleaning.select(log, clocks.get(directory), command);
            case "clean":
                clocks.get(directory).stopAt(command.get("now_ms").asLong());
                return cleaning.clean(log, clocks.get(directory), command);
            case "expire":
                clocks.get(directory).stopAt(command.get("now_ms").asLong());
                return cleaning.expire(log);
            case "for_time":
                return forTime(log, command.get("timestamp").asLong());
            case "close":
                logs.remove(directory).close();
                clocks.remove(directory);
                awaitBackground();
                return JSON.createObjectNode().put("done", true);
            case "abandon":
                awaitBackground();
                logs.remove(directory).closeHandlers();
                clocks.remove(directory);
                return JSON.createObjectNode().put("done", true);
            default:
                throw new IllegalArgumentException("unknown operation " + operation);
        }
    }

    /** Waits for flushes and deletions already handed to the one background thread. */
    private void awaitBackground() throws InterruptedException {
        CountDownLatch reached = new CountDownLatch(1);
        scheduler.scheduleOnce("await-background", reached::countDown);
        if (!reached.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the background thread is busy for more than 30 s");
        }
    }

    private UnifiedLog open(String directory, JsonNode command) throws IOException {
        Map<String, Object> configs = properties(command.get("configs"));
        configs.putIfAbsent("file.delete.delay.ms", "0");
        SettableTime clock = new SettableTime();
        if (command.has("now_ms")) {
            clock.stopAt(command.get("now_ms").asLong());
        }
        clocks.put(directory, clock);
        int expirationMs = command.path("producer_expiration_ms").asInt(PRODUCER_EXPIRATION_MS);
        return UnifiedLog.create(
                new File(directory),
                new LogConfig(configs),
                command.get("log_start_offset").asLong(),
                command.get("recovery_point").asLong(),
                scheduler,
                stats,
                clock,
                PRODUCER_EXPIRATION_MS,
                new ProducerStateManagerConfig(expirationMs, false),
                PRODUCER_EXPIRATION_MS,
                new LogDirFailureChannel(1),
                command.get("clean").asBoolean(),
                Optional.empty(),
                new ConcurrentHashMap<>(),
                false,
                LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    }

    private static ObjectNode report(UnifiedLog log) throws IOException {
        ObjectNode report = JSON.createObjectNode();
        report.put("topic_id", log.topicId().map(Object::toString).orElse(null));
        report.put("log_start_offset", log.logStartOffset());
        report.put("log_end_offset", log.logEndOffset());
        report.put("recovery_point", log.recoveryPoint());
        report.put("high_watermark", log.highWatermark());
        report.put("last_stable_offset", log.lastStableOffset());
        report.put("first_unstable_offset", log.firstUnstableOffset().orElse(-1L));
        report.put("size", log.size());
        ArrayNode segments = report.putArray("segments");
        for (LogSegment segment : log.logSegments()) {
            segments.addObject()
                    .put("base_offset", segment.baseOffset())
                    .put("size", segment.size())
                    .put("next_offset", segment.readNextOffset())
                    .put("offset_index_entries", segment.offsetIndex().entries())
                    .put("time_index_entries", segment.timeIndex().entries())
                    .put("largest_timestamp", segment.largestTimestamp());
        }
        ArrayNode epochs = report.putArray("leader_epochs");
        log.leaderEpochCache().epochEntries().forEach(e -> epochs.addArray().add(e.epoch).add(e.startOffset));
        ArrayNode producers = report.putArray("producers");
        log.activeProducers().stream()
                .sorted((a, b) -> Long.compare(a.producerId(), b.producerId()))
                .forEach(state -> producers.addObject()
                        .put("producer_id", state.producerId())
                        .put("epoch", state.producerEpoch())
                        .put("last_sequence", state.lastSequence())
                        .put("last_timestamp", state.lastTimestamp())
                        .put("coordinator_epoch", state.coordinatorEpoch())
                        .put("current_txn_first_offset", state.currentTxnStartOffset()));
        ArrayNode aborted = report.putArray("aborted_transactions");
        log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()).forEach(txn -> aborted.addArray()
                .add(txn.producerId())
                .add(txn.firstOffset())
                .add(txn.lastOffset())
                .add(txn.lastStableOffset()));
        return report;
    }

    private static JsonNode append(UnifiedLog log, JsonNode command) throws IOException {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(command.get("batch"))));
        AppendOrigin origin = AppendOrigin.valueOf(command.get("origin").asText());
        LogAppendInfo info = origin == AppendOrigin.REPLICATION
                ? log.appendAsFollower(records, command.get("leader_epoch").asInt())
                : log.appendAsLeader(records, command.get("leader_epoch").asInt(), origin);
        return JSON.createObjectNode()
                .put("first_offset", info.firstOffset())
                .put("last_offset", info.lastOffset())
                .put("log_append_time", info.logAppendTime());
    }

    /** Every record the isolation shows, control records included, and the aborted transactions of each fetch. */
    private static JsonNode read(UnifiedLog log, FetchIsolation isolation) throws IOException {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        ArrayNode aborted = answer.putArray("aborted_transactions");
        long offset = log.logStartOffset();
        long end = isolation == FetchIsolation.LOG_END ? log.logEndOffset()
                : isolation == FetchIsolation.HIGH_WATERMARK ? log.highWatermark() : log.lastStableOffset();
        while (offset < end) {
            FetchDataInfo fetched = log.read(offset, 1 << 20, isolation, true);
            long next = offset;
            for (RecordBatch batch : fetched.records.batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    if (record.offset() >= offset) {
                        records.add(describe(batch, record));
                    }
                }
                next = batch.nextOffset();
            }
            fetched.abortedTransactions.ifPresent(list -> list.forEach(transaction ->
                    aborted.addArray().add(transaction.producerId()).add(transaction.firstOffset())));
            if (next == offset) {
                throw new IllegalStateException("no batch at offset " + offset + " below the end " + end);
            }
            offset = next;
        }
        return answer;
    }

    /** What Kafka's record code makes of bytes that hold one batch: its validity, then its records. */
    private static JsonNode parse(byte[] bytes) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        int count = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
            batch.ensureValid();
            count++;
            for (Record record : batch) {
                records.add(describe(batch, record));
            }
        }
        return answer.put("batches", count);
    }

    private static ObjectNode describe(RecordBatch batch, Record record) {
        ObjectNode described = JSON.createObjectNode();
        described.put("offset", record.offset());
        described.put("timestamp", record.timestamp());
        described.put("timestamp_type", batch.timestampType().toString());
        described.put("leader_epoch", batch.partitionLeaderEpoch());
        described.put("control", batch.isControlBatch());
        described.put("key", text(record.key()));
        described.put("value", text(record.value()));
        described.set("headers", headers(List.of(record.headers())));
        return described;
    }

    private static JsonNode forTime(UnifiedLog log, long timestamp) {
        var found = log.fetchOffsetByTimestamp(timestamp, Optional.empty()).timestampAndOffsetOpt();
        return JSON.createObjectNode()
                .put("offset", found.map(hit -> hit.offset).orElse(-1L))
                .put("timestamp", found.map(hit -> hit.timestamp).orElse(-1L));
    }
}
