"""`python -m streams` on a telemetry topic of one partition: for tests of more workers than partitions."""

import msgspec

from intentloop import topics

topics.TELEMETRY = msgspec.structs.replace(topics.TELEMETRY, partitions=1)
topics.ALL = tuple(  # type: ignore[assignment]  # as long as before
    topics.TELEMETRY if one.name == topics.TELEMETRY.name else one for one in topics.ALL
)

if __name__ == "__main__":
    from streams.__main__ import main  # takes the table as it is now

    main()
