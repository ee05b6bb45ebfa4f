package varve.conformance;

import java.util.OptionalLong;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;

/** A wall clock that follows the system's until it is stopped at a moment; nanoseconds always run. */
final class SettableTime implements Time {
    private volatile OptionalLong stoppedMs = OptionalLong.empty();

    void stopAt(long nowMs) {
        stoppedMs = OptionalLong.of(nowMs);
    }

    @Override
    public long milliseconds() {
        OptionalLong stopped = stoppedMs;
        return stopped.isPresent() ? stopped.getAsLong() : Time.SYSTEM.milliseconds();
    }

    @Override
    public long nanoseconds() {
        return System.nanoTime();
    }

    @Override
    public void sleep(long ms) {
        Time.SYSTEM.sleep(ms);
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
        Time.SYSTEM.waitObject(object, condition, deadlineMs);
    }
}
