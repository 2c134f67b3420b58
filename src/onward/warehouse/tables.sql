-- Tables of the warehouse. Statements end with a semicolon at the end of a line.
--
-- Every table is a ReplacingMergeTree: it drops duplicates only when it merges, so no query reads
-- a table; all read the views (..._v), which use FINAL. Partitions follow the event's own time,
-- which never changes for an id: by the time of arrival a redelivery would go to another partition
-- and be stored twice. Without the two fsync settings an acknowledged insert can be lost in a power cut.
-- The index is finer than usual where rows are large: reading one id then unpacks 64 rows, not 8192.

CREATE TABLE IF NOT EXISTS trajectories
(
    trajectory_id  String,
    session_id     String,
    agent_id       LowCardinality(String),
    model_digest   LowCardinality(String),
    model_version  LowCardinality(String),
    release_id     LowCardinality(String),
    arm            LowCardinality(String),
    task_id        String,
    task_type      LowCardinality(String),
    group_key      String,
    domain         LowCardinality(String),
    start_ts       DateTime64(3, 'UTC'),
    end_ts         DateTime64(3, 'UTC'),
    n_turns        UInt32,
    success        UInt8,
    completion     Float64,
    tokens         UInt64,
    stream_seq     UInt64,
    ingested_at    DateTime64(3, 'UTC') DEFAULT now64(3),
    payload_sha256 String,
    payload        String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(start_ts)
ORDER BY trajectory_id
SETTINGS index_granularity = 64, fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS rewards
(
    reward_id     String,
    trajectory_id String,
    session_id    String,
    ts            DateTime64(3, 'UTC'),
    total_reward  Float64,
    raw_total     Float64,
    success       UInt8,
    completion    Float64,
    unparsable    UInt8,
    model_digest  LowCardinality(String),
    release_id    LowCardinality(String),
    task_type     LowCardinality(String),
    confidence    Float64,
    revision      UInt32 DEFAULT 0,
    stream_seq    UInt64,
    ingested_at   DateTime64(3, 'UTC') DEFAULT now64(3),
    payload       String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(ts)
ORDER BY (trajectory_id, reward_id)
SETTINGS index_granularity = 256, fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS unscored
(
    trajectory_id String,
    ts            DateTime64(3, 'UTC'),
    reason        LowCardinality(String),
    detail        String,
    stream_seq    UInt64
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(ts)
ORDER BY trajectory_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS feedback
(
    feedback_id   String,
    trajectory_id String,
    session_id    String,
    turn_id       UInt32,
    kind          LowCardinality(String),
    signal        LowCardinality(String),
    value         Nullable(Float64),
    comment       String,
    source        LowCardinality(String),
    ts            DateTime64(3, 'UTC'),
    received_at   DateTime64(3, 'UTC'),
    stream_seq    UInt64,
    payload       String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMM(ts)
ORDER BY feedback_id
SETTINGS index_granularity = 256, fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS status
(
    training_job_id String,
    ts              DateTime64(3, 'UTC'),
    status          LowCardinality(String),
    current_epoch   UInt32,
    current_step    UInt32,
    percent         Float64,
    stream_seq      UInt64,
    payload         String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(ts)
ORDER BY (training_job_id, ts, status, current_epoch, current_step)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS deployments
(
    deployment_id String,
    model_id      String,
    ts            DateTime64(3, 'UTC'),
    event         LowCardinality(String),
    release_id    String,
    traffic       Float64,
    stream_seq    UInt64,
    payload       String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(ts)
ORDER BY deployment_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS outcomes
(
    outcome_id  String,
    session_id  String,
    release_id  LowCardinality(String),
    arm         LowCardinality(String),
    weight      Float64,
    assigned_at DateTime64(3, 'UTC'),
    ts          DateTime64(3, 'UTC'),
    kind        LowCardinality(String),
    value       Float64,
    model_id    LowCardinality(String),
    stream_seq  UInt64
)
ENGINE = ReplacingMergeTree(stream_seq)
PARTITION BY toYYYYMMDD(ts)
ORDER BY outcome_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

-- Messages that made no row of their own, and why: duplicates, dead letters, erased ones. A check for missing
-- rows reads each of them once. A line with a row_key counts while the row with that id exists.
CREATE TABLE IF NOT EXISTS settled
(
    table_name LowCardinality(String),
    stream_seq UInt64,
    row_key    String,
    reason     LowCardinality(String),
    ts         DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(ts)
PARTITION BY toYYYYMM(ts)
ORDER BY (table_name, stream_seq)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000;

CREATE OR REPLACE VIEW settled_v AS SELECT * FROM settled FINAL;

CREATE OR REPLACE VIEW trajectories_v AS SELECT * FROM trajectories FINAL;

-- All rewards: a trajectory that was scored again has several.
CREATE OR REPLACE VIEW reward_history_v AS SELECT * FROM rewards FINAL;

-- The newest reward of each trajectory.
CREATE OR REPLACE VIEW rewards_v AS
SELECT * FROM rewards FINAL
ORDER BY trajectory_id, revision DESC, ts DESC, stream_seq DESC
LIMIT 1 BY trajectory_id;

-- Feedback of users on the work, redacted; an id counts once.
CREATE OR REPLACE VIEW feedback_v AS SELECT * FROM feedback FINAL;

-- A trajectory that was scored later is no longer unscored.
CREATE OR REPLACE VIEW unscored_v AS
SELECT * FROM unscored FINAL WHERE trajectory_id NOT IN (SELECT trajectory_id FROM rewards);

CREATE OR REPLACE VIEW status_v AS SELECT * FROM status FINAL;

CREATE OR REPLACE VIEW deployments_v AS SELECT * FROM deployments FINAL;

CREATE OR REPLACE VIEW outcomes_v AS SELECT * FROM outcomes FINAL;
