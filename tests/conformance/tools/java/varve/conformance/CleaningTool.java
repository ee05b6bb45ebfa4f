package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.OffsetMap;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

/** One cleaning by Apache Kafka's own Cleaner, or one look by its own retention, over an open log. */
final class CleaningTool {
    private static final long THROTTLE_INTERVAL_MS = 300;

    private final ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    private OffsetMap offsetMap;
    private int offsetMapBytes = -1;

    /** What the choice of the next log to clean goes by, without the choice. */
    ObjectNode select(UnifiedLog log, Time time, JsonNode command) throws Exception {
        log.updateHighWatermark(log.logEndOffset());
        LogCleanerManager.OffsetsToClean range =
                LogCleanerManager.cleanableOffsets(log, offset(command, "first_dirty_offset"), time.milliseconds());
        Method delay = LogCleanerManager.class.getDeclaredMethod(
                "maxCompactionDelay", UnifiedLog.class, long.class, long.class);
        delay.setAccessible(true);
        LogToClean candidate =
                new LogToClean(log, range.firstDirtyOffset(), range.firstUncleanableDirtyOffset(), false);
        ObjectNode answer = Shell.JSON.createObjectNode();
        answer.put("first_dirty_offset", range.firstDirtyOffset());
        answer.put("is_corrected", range.forceUpdateCheckpoint());
        answer.put("first_uncleanable_offset", candidate.firstUncleanableOffset());
        answer.put("clean_bytes", candidate.cleanBytes());
        answer.put("cleanable_bytes", candidate.cleanableBytes());
        answer.put("ratio", candidate.cleanableRatio());
        answer.put("delay_ms", (long) delay.invoke(null, log, range.firstDirtyOffset(), time.milliseconds()));
        return answer;
    }

    /**
     * Cleans from the first dirty offset on, unthrottled, as a cleaner thread does after it chose this log.
     *
     * <p>Without a first dirty offset the log counts as never cleaned; without a first uncleanable one Kafka's own
     * rule finds it. The offset map is kept for the next run, as a cleaner thread keeps its own.
     */
    ObjectNode clean(UnifiedLog log, Time time, JsonNode command) throws Exception {
        log.updateHighWatermark(log.logEndOffset());
        LogCleanerManager.OffsetsToClean range =
                LogCleanerManager.cleanableOffsets(log, offset(command, "first_dirty_offset"), time.milliseconds());
        long wantedEnd = offset(command, "first_uncleanable_offset").orElse(range.firstUncleanableDirtyOffset());
        LogToClean chosen = new LogToClean(log, range.firstDirtyOffset(), wantedEnd, false);
        long end = chosen.firstUncleanableOffset();
        if (range.firstDirtyOffset() >= end) {
            throw new IllegalStateException("nothing lies between the first dirty offset "
                    + range.firstDirtyOffset() + " and the first uncleanable one " + end);
        }
        Cleaner cleaner = cleaner(time, command, log.config().maxMessageSize());
        ObjectNode answer = Shell.JSON.createObjectNode();
        answer.put("first_dirty_offset", range.firstDirtyOffset());
        answer.put("first_uncleanable_offset", end);
        answer.put("size_before", log.size());
        answer.set("segments_before", segments(log));
        long cpu = threads.getCurrentThreadCpuTime();
        long start = System.nanoTime();
        Map.Entry<Long, CleanerStats> done = cleaner.clean(chosen);
        answer.put("elapsed_ns", System.nanoTime() - start);
        answer.put("cpu_ns", threads.getCurrentThreadCpuTime() - cpu);
        CleanerStats stats = done.getValue();
        answer.put("end_offset", done.getKey());
        answer.put("bytes_read", stats.bytesRead());
        answer.put("bytes_written", stats.bytesWritten());
        answer.put("map_messages_read", stats.mapMessagesRead());
        answer.put("messages_read", stats.messagesRead());
        answer.put("messages_written", stats.messagesWritten());
        answer.put("invalid_messages_read", stats.invalidMessagesRead());
        answer.put("buffer_utilisation", stats.bufferUtilization());
        answer.put("size_after", log.size());
        answer.set("segments_after", segments(log));
        return answer;
    }

    /** Runs retention once, everything below the log end being replicated. */
    ObjectNode expire(UnifiedLog log) throws Exception {
        log.updateHighWatermark(log.logEndOffset());
        ObjectNode answer = Shell.JSON.createObjectNode();
        answer.set("segments_before", segments(log));
        answer.put("deleted", log.deleteOldSegments());
        answer.put("log_start_offset", log.logStartOffset());
        answer.put("log_end_offset", log.logEndOffset());
        answer.set("segments_after", segments(log));
        return answer;
    }

    private Cleaner cleaner(Time time, JsonNode command, int maxMessageBytes) throws Exception {
        int mapBytes = command.get("dedupe_buffer_bytes").asInt();
        if (mapBytes != offsetMapBytes) {
            offsetMap = null;
            offsetMap = new SkimpyOffsetMap(mapBytes);
            offsetMapBytes = mapBytes;
        }
        Throttler unthrottled = new Throttler(Double.MAX_VALUE, THROTTLE_INTERVAL_MS, "cleaner-io", "bytes", time);
        return new Cleaner(
                0,
                offsetMap,
                command.get("io_buffer_bytes").asInt() / 2,
                maxMessageBytes,
                command.get("load_factor").asDouble(),
                unthrottled,
                time,
                partition -> { });
    }

    private static Optional<Long> offset(JsonNode command, String name) {
        return command.hasNonNull(name) ? Optional.of(command.get(name).asLong()) : Optional.empty();
    }

    private static ArrayNode segments(UnifiedLog log) {
        ArrayNode segments = Shell.JSON.createArrayNode();
        for (LogSegment segment : log.logSegments()) {
            segments.addArray().add(segment.baseOffset()).add(segment.size());
        }
        return segments;
    }
}
