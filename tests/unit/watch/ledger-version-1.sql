CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    site TEXT NOT NULL,
    application TEXT NOT NULL,
    script TEXT NOT NULL,
    home TEXT NOT NULL,
    mission_dir TEXT NOT NULL,
    log_file TEXT NOT NULL,
    args TEXT NOT NULL,
    submitter INTEGER NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    boot TEXT,
    accepted_at REAL NOT NULL,
    starting_at REAL,
    started_at REAL,
    ended_at REAL,
    pid INTEGER,
    exit_code INTEGER,
    signal INTEGER,
    record TEXT
) STRICT;
CREATE INDEX jobs_unfinished ON jobs (seq) WHERE ended_at IS NULL;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE intake (
    job_id TEXT PRIMARY KEY,
    site TEXT NOT NULL,
    name BLOB NOT NULL,
    rundir TEXT NOT NULL,
    identity BLOB NOT NULL
) STRICT;
CREATE TABLE sites (
    site TEXT PRIMARY KEY,
    first_active_at REAL NOT NULL
) STRICT;
INSERT INTO jobs (seq, id, site, application, script, home, mission_dir, log_file, args, submitter, request, state, attempts, boot,
    accepted_at, starting_at, started_at, ended_at, pid, exit_code, record) VALUES
    (1, 'a', 'alpha', 'base', 'Base.py', '/home/sg123', '/home/sg123/m', '/home/sg123/m/log', '["--a"]', 1000, '1.run', 'succeeded', 1,
    'boot', 1.0, 2.0, 3.0, 4.0, 4711, 0, '{"exit_code": 0}'),
    (2, 'b', 'alpha', 'base', 'Base.py', '/home/sg123', '/home/sg123/m', '/home/sg123/m/log', '[]', 1000, '2.run', 'running', 1,
    'boot', 1.0, 2.0, 3.0, NULL, 4712, NULL, NULL),
    (3, 'c', 'alpha', 'base', 'Base.py', '/home/sg123', '/home/sg123/m', '/home/sg123/m/log', '[]', 1000, '3.run', 'queued', 0,
    NULL, 1.0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO intake (job_id, site, name, rundir, identity) VALUES ('c', 'alpha', CAST('3.run' AS BLOB), '17', zeroblob(32));
INSERT INTO sites (site, first_active_at) VALUES ('alpha', 1.0);
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
