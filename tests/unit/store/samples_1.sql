BEGIN TRANSACTION;
CREATE TABLE feedback (
	task VARCHAR NOT NULL, 
	identifier VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	"right" JSON NOT NULL, 
	answers JSON NOT NULL, 
	at DATETIME NOT NULL, 
	principal VARCHAR NOT NULL, 
	answer_id VARCHAR, 
	version INTEGER, 
	share DOUBLE, 
	texts TEXT, 
	texts_at DATETIME, 
	explanation TEXT, 
	PRIMARY KEY (task, identifier)
);
INSERT INTO "feedback" VALUES('tone','order-1','review','"calm"','{"1": "calm"}','2026-11-24 09:00:00.000000','key:people',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "feedback" VALUES('tone','r/0','outcome','"calm"','{"1": "angry"}','2026-11-24 09:00:00.000000','key:people','r/0',1,0.1,NULL,NULL,NULL);
CREATE TABLE samples (
	task VARCHAR NOT NULL, 
	id VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	principal VARCHAR NOT NULL, 
	texts TEXT NOT NULL, 
	labels JSON NOT NULL, 
	score DOUBLE, 
	share DOUBLE NOT NULL, 
	PRIMARY KEY (task, id)
);
INSERT INTO "samples" VALUES('tone','r/0',1,'2026-11-24 09:00:00.000000','key:app','gAAAAABrC2P_DnLTq9o050usN-ki4z4CGVZj5UGY1CYRCuFUZYSVF5anhvnKzkZFAOIgGK1x1NaQZHiV7RMpn1YzOTwm_SVRaQ==','["angry"]',0.75,0.1);
CREATE INDEX ix_samples_id ON samples (id);
CREATE INDEX ix_samples_at ON samples (task, at, id);
CREATE INDEX ix_feedback_answer ON feedback (task, answer_id);
CREATE INDEX ix_feedback_at ON feedback (task, at, identifier);
COMMIT;
