"""Which Redis keys exist? All of them are named here, and only here.

State of a source partition carries its number as hash tag (`{3}`): what one script touches would lie together also in a
cluster, which is not supported yet (`docs/operations.md`). Job queues are tagged by queue, the training set by its own
name.
"""


class Keys:
    """Names every key under one prefix.

    Args:
        prefix: `RedisSection.prefix`; a unique one isolates a test.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # the training set: hash sample id → SampleLabelled; digest → sample id; sorted set of hard ids by time
        self.training = f"{prefix}:{{train}}:samples"
        self.training_digests = f"{prefix}:{{train}}:digests"
        self.training_hard = f"{prefix}:{{train}}:hard"
        self.training_used = f"{prefix}:{{train}}:used"
        self.training_fresh = f"{prefix}:{{train}}:fresh"  # set of hard ids that no release has learnt from
        self.golden = f"{prefix}:{{train}}:golden"
        self.golden_digests = f"{prefix}:{{train}}:golden_digests"
        self.golden_users = f"{prefix}:{{train}}:golden_users"
        self.outcomes = f"{prefix}:{{train}}:outcomes"  # ledger: hash label id → what came of it
        self.tallies = f"{prefix}:{{train}}:tallies"  # hash of counts, moved only together with the ledger
        # the loop's own memory
        self.decision = f"{prefix}:{{loop}}:decision"
        self.retrains = f"{prefix}:{{loop}}:retrains"
        self.verdicts = f"{prefix}:{{loop}}:verdicts"  # hash request id → what the gate said of its candidate
        self.release = f"{prefix}:{{loop}}:release"
        self.releases = f"{prefix}:{{loop}}:releases"
        self.teacher_spending = f"{prefix}:{{loop}}:spending"  # hash day → micro-yuan paid to teachers
        self.fan_out_offsets = f"{prefix}:{{loop}}:fan_out_offsets"
        self.fleets = f"{prefix}:{{loop}}:fleets"  # hash version → what is remembered of its fleet
        self.fleet_revision = f"{prefix}:{{loop}}:fleet_revision"
        self.fleet_offsets = f"{prefix}:{{loop}}:fleet_offsets"  # of labels, moved only together with the fleets
        self.broker_epoch = f"{prefix}:{{streams}}:epoch"

    def watermark(self, partition: int) -> str:
        """Last applied offset of a source partition; never expires."""
        return f"{self.prefix}:{{{partition}}}:watermark"

    def counters(self, partition: int) -> str:
        """Hash of exact counts of a source partition, moved together with its watermark."""
        return f"{self.prefix}:{{{partition}}}:counters"

    def pick_spending(self, partition: int) -> str:
        """Packed budget of hard picks of a source partition, moved together with its watermark."""
        return f"{self.prefix}:{{{partition}}}:spending"

    def user(self, partition: int, user_id: str) -> str:
        """One user's packed state."""
        return f"{self.prefix}:{{{partition}}}:user:{user_id}"

    def live_intent(self, user_id: str) -> str:
        """What this user is after now, by the last trigger; expires with it."""
        return f"{self.prefix}:live:{{{user_id}}}"

    def queue(self, name: str) -> str:
        """Redis Stream of a job queue: `label`, `train`, and `people`, the blind queue of annotators."""
        return f"{self.prefix}:{{{name}}}:jobs"

    def job(self, name: str, job_id: str) -> str:
        """Hash of one job: payload, status, tries, reason."""
        return f"{self.prefix}:{{{name}}}:job:{job_id}"

    def buried(self, name: str) -> str:
        """Hash of jobs that were given up, by id, with the reason."""
        return f"{self.prefix}:{{{name}}}:buried"

    def done(self, name: str) -> str:
        """Sorted set of done job ids by time: what makes a replayed put a no-op."""
        return f"{self.prefix}:{{{name}}}:done"

    def lease(self, name: str) -> str:
        """Who alone does this now? Expires when the owner falls silent."""
        return f"{self.prefix}:{{loop}}:lease:{name}"
