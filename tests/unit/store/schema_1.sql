BEGIN TRANSACTION;
CREATE TABLE aliases (
	task VARCHAR NOT NULL, 
	alias VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	previous INTEGER, 
	PRIMARY KEY (task, alias), 
	FOREIGN KEY(task, version) REFERENCES versions (task, version)
);
INSERT INTO "aliases" VALUES('spam','live',2,1);
INSERT INTO "aliases" VALUES('spam','canary',1,NULL);
INSERT INTO "aliases" VALUES('tone','live',1,NULL);
CREATE TABLE tasks (
	name VARCHAR NOT NULL, 
	last_version INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "tasks" VALUES('spam',3);
INSERT INTO "tasks" VALUES('tone',1);
INSERT INTO "tasks" VALUES('gone',1);
CREATE TABLE versions (
	task VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	size INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	manifest TEXT NOT NULL, 
	PRIMARY KEY (task, version), 
	UNIQUE (task, digest), 
	FOREIGN KEY(task) REFERENCES tasks (name)
);
INSERT INTO "versions" VALUES('spam',1,'sha256:cdb3bbabf4125641bf571be784ccd29533ebfb2e9e69b2390af2f17b8445be72',1040,'2026-11-20 19:10:58.403875','{"base":{"digest":"sha256:abababababababababababababababababababababababababababababababab","model_type":"bert","name":"tiny"},"format":1,"labels":["no","yes"],"max_length":16,"method":"bitfit","pooling":"mean","task_type":"single_label","training":{"seed":1}}');
INSERT INTO "versions" VALUES('spam',2,'sha256:0d1d66e4ad848e258aaea068e4264c429c085cafd49b4458df29fcad7abd1ff9',1024,'2026-11-20 19:10:58.413728','{"base":{"digest":"sha256:abababababababababababababababababababababababababababababababab","model_type":"bert","name":"tiny"},"format":1,"labels":["no","yes"],"max_length":16,"method":"bitfit","pooling":"mean","task_type":"single_label","training":{}}');
INSERT INTO "versions" VALUES('tone',1,'sha256:cdb3bbabf4125641bf571be784ccd29533ebfb2e9e69b2390af2f17b8445be72',1040,'2026-11-20 19:10:58.476804','{"base":{"digest":"sha256:abababababababababababababababababababababababababababababababab","model_type":"bert","name":"tiny"},"format":1,"labels":["no","yes"],"max_length":16,"method":"bitfit","pooling":"mean","task_type":"single_label","training":{"seed":1}}');
CREATE INDEX ix_versions_digest ON versions (digest);
COMMIT;
PRAGMA user_version = 1;
