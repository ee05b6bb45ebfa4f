package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/** Apache Kafka's command line tools, one after the other in one virtual machine, which starts them sooner. */
final class ToolShell extends Shell {
    /** Where a tool would end its process; tools may catch it, so that what counts is noted before. */
    private static final class Ended extends RuntimeException {
        Ended() {
            super("the tool ended", null, false, false);
        }
    }

    private ByteArrayOutputStream output;
    private JsonNode answer;

    public static void main(String[] arguments) throws Exception {
        ToolShell shell = new ToolShell();
        Exit.setExitProcedure((status, message) -> shell.end(status, message));
        Exit.setHaltProcedure((status, message) -> shell.end(status, message));
        shell.serve();
        Runtime.getRuntime().halt(0);
    }

    @Override
    JsonNode run(String operation, JsonNode command) throws Exception {
        if (!operation.equals("run")) {
            throw new IllegalArgumentException("unknown operation " + operation);
        }
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        output = new ByteArrayOutputStream();
        answer = null;
        PrintStream before = System.out;
        PrintStream printed = new PrintStream(output, true, StandardCharsets.UTF_8);
        System.setIn(new ByteArrayInputStream(command.get("input").asText().getBytes(StandardCharsets.UTF_8)));
        System.setOut(printed);
        System.setErr(printed);
        try {
            call(Class.forName(command.get("tool").asText()), arguments.toArray(String[]::new));
        } finally {
            System.setOut(before);
            System.setErr(before);
        }
        return answer;
    }

    private void call(Class<?> tool, String[] arguments) throws Exception {
        try {
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
            note(0);
        } catch (InvocationTargetException thrown) {
            if (answer == null) {
                thrown.getCause().printStackTrace();
                note(1);
            }
        }
    }

    private void end(int status, String message) {
        if (message != null) {
            System.err.println(message);
        }
        note(status);
        throw new Ended();
    }

    private void note(int status) {
        if (answer == null) {
            answer = JSON.createObjectNode()
                    .put("status", status)
                    .put("output", output.toString(StandardCharsets.UTF_8));
        }
    }
}
