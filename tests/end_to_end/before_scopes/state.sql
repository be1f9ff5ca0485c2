BEGIN TRANSACTION;
CREATE TABLE checkpoint (
            checkpoint_key TEXT PRIMARY KEY,
            generation BIGINT NOT NULL,
            version INTEGER,
            source_type TEXT,
            position_type TEXT,
            position TEXT,
            sort_key TEXT,
            timestamp BIGINT,
            transaction_id TEXT,
            metadata TEXT,
            saved_generation BIGINT,
            source_identity TEXT,
            pipeline TEXT,
            run_id TEXT,
            unknown TEXT,
            checksum TEXT
        );
CREATE TABLE checkpoint_audit (
            checkpoint_key TEXT NOT NULL,
            generation BIGINT NOT NULL,
            timestamp BIGINT NOT NULL,
            reason TEXT NOT NULL,
            position TEXT,
            PRIMARY KEY (checkpoint_key, generation)
        );
CREATE TABLE chunk_task (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            identity TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            run_id TEXT NOT NULL,
            result TEXT NOT NULL,
            finished_at TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key, identity)
        );
INSERT INTO "chunk_task" VALUES('big','all','id[1,5]','4255e5dc1b60ea9a','big_20261123T001411.160_08988f','{"chunk": 0, "parts": [{"path": "big_20261123_001411_160_08988f_chunk0.csv", "rows": 5, "size_bytes": 35, "fingerprint": "xxh3:6ba84f829af974df", "md5": "RZFksLA3jCh6ZeXTWnPi3g==", "staged": {"path": "_staged/big_20261123T001411.160_08988f/aba73d46-chunk0-0.0-0.csv"}, "chunk": 0, "schema": ""}], "measures": {"rows": 5, "rows_read": 5, "nulls": {"id": 0, "amount": 0}, "special_values": {}, "unique": {}, "checksums": {"id": 17724851402855391986, "amount": 17581573267681888042}, "pages": 1, "arrow_bytes": 80, "retries": 0, "longest_statement_ms": 0.5475950001709862, "throttled_seconds": 0.0, "cpu_seconds": 0.005214715000000147, "peak_mb": 157.5556640625, "governed_seconds": 0.0, "rows_scanned": null, "temp_bytes": null, "longest_transaction_ms": 0.5475950001709862, "connections": 1}}','2026-11-23T00:14:11.797215+00:00');
INSERT INTO "chunk_task" VALUES('big','all','id[6,10]','4255e5dc1b60ea9a','big_20261123T001411.160_08988f','{"chunk": 1, "parts": [{"path": "big_20261123_001411_160_08988f_chunk1.csv", "rows": 5, "size_bytes": 37, "fingerprint": "xxh3:b8d603325aff46eb", "md5": "a4mnGcX8D5MRElLswMzkkA==", "staged": {"path": "_staged/big_20261123T001411.160_08988f/02acbe35-chunk1-0.0-0.csv"}, "chunk": 1, "schema": ""}], "measures": {"rows": 5, "rows_read": 5, "nulls": {"id": 0, "amount": 0}, "special_values": {}, "unique": {}, "checksums": {"id": 9009858672294889460, "amount": 3839341749399568476}, "pages": 1, "arrow_bytes": 80, "retries": 0, "longest_statement_ms": 0.6103390001044318, "throttled_seconds": 0.0, "cpu_seconds": 0.003818144999999884, "peak_mb": 157.6259765625, "governed_seconds": 0.0, "rows_scanned": null, "temp_bytes": null, "longest_transaction_ms": 0.6103390001044318, "connections": 1}}','2026-11-23T00:14:11.821088+00:00');
INSERT INTO "chunk_task" VALUES('big','all','id[11,15]','4255e5dc1b60ea9a','big_20261123T001411.160_08988f','{"chunk": 2, "parts": [{"path": "big_20261123_001411_160_08988f_chunk2.csv", "rows": 5, "size_bytes": 45, "fingerprint": "xxh3:8096ea7c8934f462", "md5": "y5qSBRdxQsx9DxW7/Tcn8w==", "staged": {"path": "_staged/big_20261123T001411.160_08988f/d01b0702-chunk2-0.0-0.csv"}, "chunk": 2, "schema": ""}], "measures": {"rows": 5, "rows_read": 5, "nulls": {"id": 0, "amount": 0}, "special_values": {}, "unique": {}, "checksums": {"id": 13549847743628404933, "amount": 2119269691925988202}, "pages": 1, "arrow_bytes": 80, "retries": 0, "longest_statement_ms": 0.48001599998315214, "throttled_seconds": 0.0, "cpu_seconds": 0.003230782999999793, "peak_mb": 157.6416015625, "governed_seconds": 0.0, "rows_scanned": null, "temp_bytes": null, "longest_transaction_ms": 0.48001599998315214, "connections": 1}}','2026-11-23T00:14:11.844643+00:00');
CREATE TABLE export_lease (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            run_id TEXT NOT NULL,
            host TEXT NOT NULL,
            pid INTEGER NOT NULL,
            process_start DOUBLE PRECISION NOT NULL,
            acquired_at TEXT NOT NULL,
            expires_at TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key)
        );
CREATE TABLE export_metrics (
            run_id TEXT PRIMARY KEY,
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            mode TEXT NOT NULL,
            status TEXT NOT NULL,
            started_at TEXT NOT NULL,
            finished_at TEXT,
            duration_ms BIGINT,
            total_rows BIGINT NOT NULL,
            files_produced BIGINT NOT NULL,
            bytes_written BIGINT NOT NULL,
            format TEXT NOT NULL,
            compression TEXT NOT NULL,
            tuning_profile TEXT NOT NULL,
            consistency TEXT NOT NULL,
            cursor_low TEXT,
            cursor_high TEXT,
            retries BIGINT NOT NULL,
            longest_statement_ms DOUBLE PRECISION NOT NULL,
            cpu_seconds DOUBLE PRECISION NOT NULL,
            peak_mb DOUBLE PRECISION NOT NULL,
            validated BOOLEAN,
            quality_passed BOOLEAN,
            schema_changed BOOLEAN,
            degraded BOOLEAN NOT NULL,
            error_code TEXT,
            error_message TEXT,
            host TEXT NOT NULL,
            pid INTEGER NOT NULL,
            process_start DOUBLE PRECISION NOT NULL
        , source_type TEXT, destination_type TEXT, rows_read BIGINT, harm TEXT);
INSERT INTO "export_metrics" VALUES('orders_20261123T001359.264_602274','orders','all','incremental','success','2026-11-23T00:13:59.264613+00:00','2026-11-23T00:14:00.072590+00:00',808,20,1,210,'csv','none','fast','single',NULL,'20',0,1.9947700002376222983e-01,4.12332900000000890372e-03,157.6494140625,1,1,0,0,NULL,NULL,'an-old-host',5057,1795392834.7,'sqlite','local',20,'{"longest_statement_ms": 0.199, "longest_transaction_ms": 1.796, "rows_read": 20.0, "connections": 1.0, "throttled_seconds": 0.0, "governed_seconds": 0.0, "steps_down": 0.0}');
INSERT INTO "export_metrics" VALUES('big_20261123T001404.947_729b9c','big','all','chunked','success','2026-11-23T00:14:04.947091+00:00','2026-11-23T00:14:05.856760+00:00',910,10,2,72,'csv','none','fast','per_query',NULL,NULL,0,6.81335999843213357962e-01,7.29741999999955481825e-03,157.595703125,1,1,0,0,NULL,NULL,'an-old-host',5131,1795392840.58,'sqlite','local',10,'{"longest_statement_ms": 0.681, "longest_transaction_ms": 0.681, "rows_read": 10.0, "connections": 2.0, "throttled_seconds": 0.0, "governed_seconds": 0.0, "steps_down": 0.0}');
INSERT INTO "export_metrics" VALUES('orders_20261123T001405.898_233032','orders','all','incremental','success','2026-11-23T00:14:05.898718+00:00','2026-11-23T00:14:06.069006+00:00',170,0,0,0,'csv','none','fast','single','20','20',0,0.0,1.24054800000017451111e-03,158.0087890625,1,1,0,0,NULL,NULL,'an-old-host',5131,1795392840.58,'sqlite','local',0,'{"longest_statement_ms": 0.0, "longest_transaction_ms": 0.645, "rows_read": 0.0, "connections": 1.0, "throttled_seconds": 0.0, "governed_seconds": 0.0, "steps_down": 0.0}');
INSERT INTO "export_metrics" VALUES('big_20261123T001411.160_08988f','big','all','chunked','failed','2026-11-23T00:14:11.160116+00:00','2026-11-23T00:14:11.851378+00:00',691,0,0,0,'','','','',NULL,NULL,0,0.0,0.0,0.0,NULL,NULL,NULL,0,'RIVET_VALUE_DOES_NOT_FIT','`big.amount` is INTEGER and holds values of another storage class, which integer cannot store. Choose: `columns: {amount: {on_special_value: "null"}}` (counted), `"text"` (column becomes text), or clean the source. 1 row in chunk 3.','an-old-host',5145,1795392846.44,NULL,NULL,NULL,NULL);
INSERT INTO "export_metrics" VALUES('lines_20261123T001412.245_2bd930','lines','all','incremental','success','2026-11-23T00:14:12.245192+00:00','2026-11-23T00:14:12.513250+00:00',268,20,1,210,'csv','none','fast','single',NULL,'20',0,4.62859999970532953739e-01,7.4694410000000210914e-03,158.24609375,1,1,0,0,NULL,NULL,'an-old-host',5145,1795392846.44,'sqlite','local',20,'{"longest_statement_ms": 0.463, "longest_transaction_ms": 3.267, "rows_read": 20.0, "connections": 1.0, "throttled_seconds": 0.0, "governed_seconds": 0.0, "steps_down": 0.0}');
CREATE TABLE export_schema (
            export_name TEXT NOT NULL,
            version INTEGER NOT NULL,
            columns TEXT NOT NULL,
            recorded_at TEXT NOT NULL,
            PRIMARY KEY (export_name, version)
        );
INSERT INTO "export_schema" VALUES('orders',1,'[["id", "int64"], ["note", "string"]]','2026-11-23T00:13:59.872295+00:00');
INSERT INTO "export_schema" VALUES('big',1,'[["id", "int64"], ["amount", "int64"]]','2026-11-23T00:14:05.816264+00:00');
INSERT INTO "export_schema" VALUES('lines',1,'[["id", "int64"], ["note", "string"]]','2026-11-23T00:14:12.449641+00:00');
CREATE TABLE export_state (
            export_name TEXT PRIMARY KEY,
            last_cursor_value TEXT,
            updated_at TEXT NOT NULL
        );
INSERT INTO "export_state" VALUES('orders','20','2026-11-23T00:14:06.018456+00:00');
INSERT INTO "export_state" VALUES('lines','20','2026-11-23T00:14:12.437777+00:00');
CREATE TABLE file_manifest (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            run_id TEXT NOT NULL,
            file_name TEXT NOT NULL,
            row_count BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            format TEXT NOT NULL,
            compression TEXT NOT NULL,
            content_md5 TEXT NOT NULL,
            created_at TEXT NOT NULL,
            PRIMARY KEY (export_name, run_id, file_name)
        );
INSERT INTO "file_manifest" VALUES('orders','after=start','orders_20261123T001359.264_602274','orders_20261123_001359_264_602274.csv',20,210,'csv','none','2tTiGJUNNeWt5JZm+QQcsg==','2026-11-23T00:13:59.864384+00:00');
INSERT INTO "file_manifest" VALUES('big','all','big_20261123T001404.947_729b9c','big_20261123_001404_947_729b9c_chunk0.csv',5,35,'csv','none','RZFksLA3jCh6ZeXTWnPi3g==','2026-11-23T00:14:05.782500+00:00');
INSERT INTO "file_manifest" VALUES('big','all','big_20261123T001404.947_729b9c','big_20261123_001404_947_729b9c_chunk1.csv',5,37,'csv','none','a4mnGcX8D5MRElLswMzkkA==','2026-11-23T00:14:05.782500+00:00');
INSERT INTO "file_manifest" VALUES('lines','after=start','lines_20261123T001412.245_2bd930','lines_20261123_001412_245_2bd930.csv',20,210,'csv','none','2tTiGJUNNeWt5JZm+QQcsg==','2026-11-23T00:14:12.376648+00:00');
CREATE TABLE rivet_store (version INTEGER NOT NULL);
INSERT INTO "rivet_store" VALUES(3);
CREATE TABLE run_journal (
            run_id TEXT NOT NULL,
            number INTEGER NOT NULL,
            export_name TEXT NOT NULL,
            at TEXT NOT NULL,
            event TEXT NOT NULL,
            detail TEXT NOT NULL,
            PRIMARY KEY (run_id, number)
        );
INSERT INTO "run_journal" VALUES('orders_20261123T001359.264_602274',1,'orders','2026-11-23T00:13:59.842704+00:00','PlanResolved','{"strategy": "incremental-cursor(1 chunk, p=1)", "chunks": 1, "rows_estimate": 20, "consistency": "single", "window": "after=start", "parallel": 1, "profile": "fast"}');
INSERT INTO "run_journal" VALUES('orders_20261123T001359.264_602274',2,'orders','2026-11-23T00:13:59.842709+00:00','PlanWarning','{"text": "journal_mode is delete: writers wait while a chunk is read (WAL would not let them)"}');
INSERT INTO "run_journal" VALUES('orders_20261123T001359.264_602274',3,'orders','2026-11-23T00:13:59.856945+00:00','ChunkCompleted','{"done": 1, "of": 1, "rows": 20}');
INSERT INTO "run_journal" VALUES('orders_20261123T001359.264_602274',4,'orders','2026-11-23T00:14:00.072607+00:00','RunCompleted','{"status": "success", "total_rows": 20, "files_produced": 1, "bytes_written": 210, "duration_ms": 808, "retries": 0}');
INSERT INTO "run_journal" VALUES('big_20261123T001404.947_729b9c',1,'big','2026-11-23T00:14:05.471722+00:00','PlanResolved','{"strategy": "chunked-keyset(id, 2 chunks, p=1)", "chunks": 2, "rows_estimate": 10, "consistency": "per_query", "window": "all", "parallel": 1, "profile": "fast"}');
INSERT INTO "run_journal" VALUES('big_20261123T001404.947_729b9c',2,'big','2026-11-23T00:14:05.471728+00:00','PlanWarning','{"text": "cut by range"}');
INSERT INTO "run_journal" VALUES('big_20261123T001404.947_729b9c',3,'big','2026-11-23T00:14:05.491835+00:00','ChunkCompleted','{"done": 1, "of": 2, "rows": 5}');
INSERT INTO "run_journal" VALUES('big_20261123T001404.947_729b9c',4,'big','2026-11-23T00:14:05.527358+00:00','ChunkCompleted','{"done": 2, "of": 2, "rows": 10}');
INSERT INTO "run_journal" VALUES('big_20261123T001404.947_729b9c',5,'big','2026-11-23T00:14:05.856779+00:00','RunCompleted','{"status": "success", "total_rows": 10, "files_produced": 2, "bytes_written": 72, "duration_ms": 910, "retries": 0}');
INSERT INTO "run_journal" VALUES('orders_20261123T001405.898_233032',1,'orders','2026-11-23T00:14:05.935735+00:00','PlanResolved','{"strategy": "incremental-cursor(1 chunk, p=1)", "chunks": 1, "rows_estimate": 10, "consistency": "single", "window": "after=20", "parallel": 1, "profile": "fast"}');
INSERT INTO "run_journal" VALUES('orders_20261123T001405.898_233032',2,'orders','2026-11-23T00:14:05.935744+00:00','PlanWarning','{"text": "journal_mode is delete: writers wait while a chunk is read (WAL would not let them)"}');
INSERT INTO "run_journal" VALUES('orders_20261123T001405.898_233032',3,'orders','2026-11-23T00:14:05.959724+00:00','ChunkCompleted','{"done": 1, "of": 1, "rows": 0}');
INSERT INTO "run_journal" VALUES('orders_20261123T001405.898_233032',4,'orders','2026-11-23T00:14:06.069022+00:00','RunCompleted','{"status": "success", "total_rows": 0, "files_produced": 0, "bytes_written": 0, "duration_ms": 170, "retries": 0}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',1,'big','2026-11-23T00:14:11.760816+00:00','PlanResolved','{"strategy": "chunked-keyset(id, 4 chunks, p=1)", "chunks": 4, "rows_estimate": 20, "consistency": "per_query", "window": "all", "parallel": 1, "profile": "fast"}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',2,'big','2026-11-23T00:14:11.760824+00:00','PlanWarning','{"text": "cut by range"}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',3,'big','2026-11-23T00:14:11.799030+00:00','ChunkCompleted','{"done": 1, "of": 4, "rows": 5}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',4,'big','2026-11-23T00:14:11.823314+00:00','ChunkCompleted','{"done": 2, "of": 4, "rows": 10}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',5,'big','2026-11-23T00:14:11.847416+00:00','ChunkCompleted','{"done": 3, "of": 4, "rows": 15}');
INSERT INTO "run_journal" VALUES('big_20261123T001411.160_08988f',6,'big','2026-11-23T00:14:11.851402+00:00','RunCompleted','{"status": "failed", "duration_ms": 691, "error_code": "RIVET_VALUE_DOES_NOT_FIT", "error_message": "`big.amount` is INTEGER and holds values of another storage class, which integer cannot store. Choose: `columns: {amount: {on_special_value: \"null\"}}` (counted), `\"text\"` (column becomes text), or clean the source. 1 row in chunk 3."}');
INSERT INTO "run_journal" VALUES('lines_20261123T001412.245_2bd930',1,'lines','2026-11-23T00:14:12.300537+00:00','PlanResolved','{"strategy": "incremental-cursor(1 chunk, p=1)", "chunks": 1, "rows_estimate": 20, "consistency": "single", "window": "after=start", "parallel": 1, "profile": "fast"}');
INSERT INTO "run_journal" VALUES('lines_20261123T001412.245_2bd930',2,'lines','2026-11-23T00:14:12.300550+00:00','PlanWarning','{"text": "journal_mode is delete: writers wait while a chunk is read (WAL would not let them)"}');
INSERT INTO "run_journal" VALUES('lines_20261123T001412.245_2bd930',3,'lines','2026-11-23T00:14:12.353060+00:00','ChunkCompleted','{"done": 1, "of": 1, "rows": 20}');
INSERT INTO "run_journal" VALUES('lines_20261123T001412.245_2bd930',4,'lines','2026-11-23T00:14:12.513285+00:00','RunCompleted','{"status": "success", "total_rows": 20, "files_produced": 1, "bytes_written": 210, "duration_ms": 268, "retries": 0}');
CREATE TABLE verification (
            export_name TEXT NOT NULL,
            window_key TEXT NOT NULL,
            kind TEXT NOT NULL,
            run_id TEXT NOT NULL,
            verified_at TEXT NOT NULL,
            verdict TEXT NOT NULL,
            detail TEXT NOT NULL,
            PRIMARY KEY (export_name, window_key, kind)
        );
CREATE INDEX export_metrics_by_export ON export_metrics (export_name, started_at);
CREATE INDEX file_manifest_by_time ON file_manifest (created_at);
CREATE INDEX run_journal_by_export ON run_journal (export_name, at);
COMMIT;
