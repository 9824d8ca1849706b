"""Which numbers does a process show at `/metrics`? Every metric of the product is declared here, once.

Labels are bounded sets, never ids. Exact totals live in Redis (`state_store.read_counts`); these start at 0 with a
process.
"""

from prometheus_client import Counter, Gauge, Histogram

STREAM_EVENTS = Counter("intentloop_stream_events_total", "Events of phones by what became of them.", ["outcome"])
STREAM_RECORDS = Counter("intentloop_stream_records_total", "Kafka records of telemetry applied.")
STREAM_OUTPUTS = Counter("intentloop_stream_outputs_total", "Facts sent by the streams.", ["topic"])
STREAM_BATCH = Histogram(
    "intentloop_stream_batch_seconds",
    "Time from a batch in memory to its watermark in Redis.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
STREAM_IDLE = Gauge("intentloop_stream_idle_seconds", "Time since the last applied batch.")

TEACHER_CLOSED = Counter("intentloop_teacher_closures_total", "Times that a teacher was closed, each one alarm.")
LABEL_VERDICTS = Counter("intentloop_label_verdicts_total", "Samples labelled by verdict.", ["verdict"])
LABEL_SECONDS = Histogram(
    "intentloop_label_seconds",
    "Time from a claimed job to its stored label.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120),
)
FAN_OUT_RECORDS = Counter("intentloop_fan_out_records_total", "Picked samples by what became of them.", ["outcome"])
RETRAIN_REQUESTS = Counter("intentloop_retrain_requests_total", "Retrains asked for by this process.")
FLEET_DRIFTS = Counter("intentloop_fleet_drifts_total", "Fleet drifts confirmed, by signal.", ["signal"])

GATEWAY_EVENTS = Counter("intentloop_gateway_events_total", "Events of phones by what became of them.", ["outcome"])
GATEWAY_REPAIRS = Counter("intentloop_gateway_repairs_total", "Repairs to events that were kept.", ["note"])
GATEWAY_REFUSALS = Counter("intentloop_gateway_refusals_total", "Requests refused as a whole, by status.", ["status"])
GATEWAY_STORE = Histogram(
    "intentloop_gateway_store_seconds",
    "Time until Kafka confirmed a batch.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
