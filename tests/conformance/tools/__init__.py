"""Apache Kafka as the judge: its broker, clients, dump tool and log loader, driven from tests."""
