import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;

/** Prints partition, offset and a column of each row that Iceberg's own reader finds in a table. */
public class ReadTable {
    public static void main(String[] arguments) throws Exception {
        HadoopFileIO io = new HadoopFileIO(new Configuration());
        BaseTable table = new BaseTable(new StaticTableOperations(arguments[0], io), "table");
        System.out.println("spec " + table.spec().fields());
        long from = Long.parseLong(arguments[2]);
        try (CloseableIterable<Record> rows = IcebergGenerics.read(table)
                .where(Expressions.greaterThanOrEqual("_offset", from)).build()) {
            for (Record row : rows) {
                System.out.println("row " + row.getField("_partition") + " " + row.getField("_offset")
                        + " " + row.getField(arguments[1]));
            }
        }
    }
}
