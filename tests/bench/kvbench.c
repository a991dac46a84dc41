/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What weft's tree is measured against: LMDB, WiredTiger and BerkeleyDB with the same
 * 16-byte keys. Takes the lines that `weft bench tree` takes ("lookup THREADS COUNT",
 * "insert THREADS COUNT").
 *
 *	kvbench lmdb|wiredtiger|bdb DIR ITEMS CACHE_MIB
 *
 * Each logs as it does and none syncs: LMDB with NOSYNC and a writable map, which is its
 * fastest, WiredTiger with its log and no sync, BerkeleyDB with its log and TXN_NOSYNC.
 * Every insert is a transaction of its own, every lookup sees what is committed.
 */
#include <db.h>
#include <errno.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wiredtiger.h>

#define THREADS_MAX 64u
#define LOAD_BATCH  64u

struct key {
	uint64_t high, low; /* big-endian: memcmp order */
};

/* What a thread works with. `insert` commits `count` new items from `first` on as one. */
struct store {
	void *(*thread_begin)(void);
	void (*insert)(void *thread, uint64_t first, unsigned count);
	uint64_t (*lookup)(void *thread, uint64_t i);
	void (*thread_end)(void *thread);
};

static const char *dir;
static uint64_t items, cache_mib;

static void must_(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "kvbench: %s: %d\n", what, rc);
	exit(1);
}
#define MUST(call) must_(call, #call)

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct key key_of(uint64_t i)
{
	return (struct key){__builtin_bswap64(mix(i + 1)), __builtin_bswap64(mix(~i))};
}

/* ---- LMDB ------------------------------------------------------------------------ */

static MDB_env *lmdb;
static MDB_dbi lmdb_table;

static void lmdb_open(void)
{
	MDB_txn *x;

	MUST(mdb_env_create(&lmdb));
	MUST(mdb_env_set_mapsize(lmdb, (size_t)4 * cache_mib << 20));
	MUST(mdb_env_open(lmdb, dir, MDB_NOSYNC | MDB_WRITEMAP | MDB_NOTLS, 0600));
	MUST(mdb_txn_begin(lmdb, NULL, 0, &x));
	MUST(mdb_dbi_open(x, NULL, 0, &lmdb_table));
	MUST(mdb_txn_commit(x));
}

static void *lmdb_thread(void)
{
	MDB_txn *x;

	MUST(mdb_txn_begin(lmdb, NULL, MDB_RDONLY, &x));
	mdb_txn_reset(x);
	return x;
}

static void lmdb_insert(void *thread, uint64_t first, unsigned count)
{
	MDB_txn *x;

	MUST(mdb_txn_begin(lmdb, NULL, 0, &x));
	for (uint64_t i = first; i < first + count; i++) {
		struct key key = key_of(i);
		MDB_val k = {sizeof(key), &key}, v = {sizeof(i), &i};

		MUST(mdb_put(x, lmdb_table, &k, &v, 0));
	}
	MUST(mdb_txn_commit(x));
}

static uint64_t lmdb_lookup(void *thread, uint64_t i)
{
	struct key key = key_of(i);
	MDB_val k = {sizeof(key), &key}, v;

	MUST(mdb_txn_renew(thread));
	MUST(mdb_get(thread, lmdb_table, &k, &v));
	memcpy(&i, v.mv_data, sizeof(i));
	mdb_txn_reset(thread);
	return i;
}

static void lmdb_thread_end(void *thread)
{
	mdb_txn_abort(thread);
}

/* ---- WiredTiger ------------------------------------------------------------------ */

static WT_CONNECTION *wt;

static void wt_open(void)
{
	WT_SESSION *s;
	char config[256];

	snprintf(config, sizeof(config),
		"create,cache_size=%lluMB,log=(enabled=true),transaction_sync=(enabled="
		"false),"
		"session_max=200",
		2 * (unsigned long long)cache_mib);
	MUST(wiredtiger_open(dir, NULL, config, &wt));
	MUST(wt->open_session(wt, NULL, NULL, &s));
	MUST(s->create(s, "table:items", "key_format=u,value_format=u"));
	MUST(s->close(s, NULL));
}

struct wt_thread {
	WT_SESSION *session;
	WT_CURSOR *cursor;
};

static void *wt_thread(void)
{
	struct wt_thread *t = calloc(1, sizeof(*t));

	if (!t)
		exit(1);
	MUST(wt->open_session(wt, NULL, NULL, &t->session));
	MUST(t->session->open_cursor(
		t->session, "table:items", NULL, "overwrite=true", &t->cursor));
	return t;
}

static void wt_insert(void *thread, uint64_t first, unsigned count)
{
	struct wt_thread *t = thread;

	for (;;) {
		int rc = 0;

		MUST(t->session->begin_transaction(t->session, NULL));
		for (uint64_t i = first; i < first + count && rc == 0; i++) {
			struct key key = key_of(i);
			WT_ITEM k = {.data = &key, .size = sizeof(key)};
			WT_ITEM v = {.data = &i, .size = sizeof(i)};

			t->cursor->set_key(t->cursor, &k);
			t->cursor->set_value(t->cursor, &v);
			rc = t->cursor->insert(t->cursor);
		}
		if (rc == 0) {
			MUST(t->session->commit_transaction(t->session, NULL));
			return;
		}
		if (rc != WT_ROLLBACK)
			must_(rc, "insert");
		MUST(t->session->rollback_transaction(t->session, NULL));
	}
}

static uint64_t wt_lookup(void *thread, uint64_t i)
{
	struct wt_thread *t = thread;
	struct key key = key_of(i);
	WT_ITEM k = {.data = &key, .size = sizeof(key)}, v;

	t->cursor->set_key(t->cursor, &k);
	MUST(t->cursor->search(t->cursor));
	MUST(t->cursor->get_value(t->cursor, &v));
	memcpy(&i, v.data, sizeof(i));
	MUST(t->cursor->reset(t->cursor));
	return i;
}

static void wt_thread_end(void *thread)
{
	struct wt_thread *t = thread;

	MUST(t->session->close(t->session, NULL));
	free(t);
}

/* ---- BerkeleyDB ------------------------------------------------------------------ */

static DB_ENV *bdb;
static DB *bdb_table;

static void bdb_open(void)
{
	uint64_t bytes = 2 * cache_mib << 20;

	MUST(db_env_create(&bdb, 0));
	MUST(bdb->set_cachesize(
		bdb, (uint32_t)(bytes >> 30), (uint32_t)(bytes & ((1u << 30) - 1)), 1));
	MUST(bdb->set_lk_max_locks(bdb, 100000));
	MUST(bdb->set_lk_max_objects(bdb, 100000));
	MUST(bdb->set_lk_max_lockers(bdb, 10000));
	MUST(bdb->set_lk_detect(bdb, DB_LOCK_DEFAULT));
	MUST(bdb->set_lg_bsize(bdb, 8u << 20));
	MUST(bdb->set_lg_max(bdb, 64u << 20));
	MUST(bdb->set_flags(bdb, DB_TXN_NOSYNC, 1));
	MUST(bdb->log_set_config(bdb, DB_LOG_AUTO_REMOVE, 1));
	MUST(bdb->open(bdb, dir,
		DB_CREATE | DB_PRIVATE | DB_THREAD | DB_INIT_MPOOL | DB_INIT_LOCK |
			DB_INIT_LOG | DB_INIT_TXN,
		0600));
	MUST(db_create(&bdb_table, bdb, 0));
	MUST(bdb_table->set_pagesize(bdb_table, 4096));
	MUST(bdb_table->open(bdb_table, NULL, "items.db", NULL, DB_BTREE,
		DB_CREATE | DB_THREAD | DB_AUTO_COMMIT, 0600));
}

static void *bdb_thread(void)
{
	return bdb_table;
}

static void bdb_insert(void *thread, uint64_t first, unsigned count)
{
	for (;;) {
		DB_TXN *x;
		int rc = 0;

		MUST(bdb->txn_begin(bdb, NULL, &x, 0));
		for (uint64_t i = first; i < first + count && rc == 0; i++) {
			struct key key = key_of(i);
			DBT k = {.data = &key, .size = sizeof(key)};
			DBT v = {.data = &i, .size = sizeof(i)};

			rc = bdb_table->put(bdb_table, x, &k, &v, 0);
		}
		if (rc == 0) {
			MUST(x->commit(x, 0));
			return;
		}
		if (rc != DB_LOCK_DEADLOCK)
			must_(rc, "put");
		MUST(x->abort(x));
	}
}

static uint64_t bdb_lookup(void *thread, uint64_t i)
{
	struct key key = key_of(i);
	DBT k = {.data = &key, .size = sizeof(key)};
	DBT v = {.data = &i, .ulen = sizeof(i), .flags = DB_DBT_USERMEM};

	MUST(bdb_table->get(bdb_table, NULL, &k, &v, 0));
	return i;
}

static void bdb_thread_end(void *thread)
{
}

/* ---- measurements ---------------------------------------------------------------- */

static const struct store *store;

struct part {
	pthread_t thread;
	int inserts;
	unsigned number, threads;
	uint64_t count;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *part_main(void *arg)
{
	struct part *p = arg;
	void *thread = store->thread_begin();
	uint64_t state = now_ns() + p->number;

	for (uint64_t n = 0; n < p->count; n++) {
		uint64_t i = mix(state + n) % items;

		if (p->inserts)
			store->insert(thread, items + n * p->threads + p->number, 1);
		else if (store->lookup(thread, i) != i)
			must_(1, "a wrong value");
	}
	store->thread_end(thread);
	return NULL;
}

static void measure(int inserts, unsigned threads, uint64_t count)
{
	struct part part[THREADS_MAX];
	uint64_t began = now_ns();

	for (unsigned i = 0; i < threads; i++) {
		part[i] = (struct part){.inserts = inserts,
			.number = i,
			.threads = threads,
			.count = count / threads};
		MUST(pthread_create(&part[i].thread, NULL, part_main, &part[i]));
	}
	for (unsigned i = 0; i < threads; i++)
		MUST(pthread_join(part[i].thread, NULL));
	count = count / threads * threads;
	printf("per_second=%.1f\n", (double)count * 1e9 / (double)(now_ns() - began));
	fflush(stdout);
	if (inserts)
		items += count;
}

static void load(void)
{
	void *thread = store->thread_begin();

	for (uint64_t i = 0; i < items; i += LOAD_BATCH)
		store->insert(thread, i,
			(unsigned)(items - i < LOAD_BATCH ? items - i : LOAD_BATCH));
	store->thread_end(thread);
	puts("ready");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*open)(void);
		struct store store;
	} stores[] = {
		{"lmdb", lmdb_open,
			{lmdb_thread, lmdb_insert, lmdb_lookup, lmdb_thread_end}},
		{"wiredtiger", wt_open, {wt_thread, wt_insert, wt_lookup, wt_thread_end}},
		{"bdb", bdb_open, {bdb_thread, bdb_insert, bdb_lookup, bdb_thread_end}},
	};
	char line[128], what[16];
	unsigned long count;
	unsigned threads;

	for (size_t i = 0; argc == 5 && i < sizeof(stores) / sizeof(*stores); i++)
		if (strcmp(argv[1], stores[i].name) == 0) {
			dir = argv[2];
			items = strtoull(argv[3], NULL, 10);
			cache_mib = strtoull(argv[4], NULL, 10);
			store = &stores[i].store;
			stores[i].open();
		}
	if (!store || items == 0 || cache_mib == 0) {
		fputs("kvbench lmdb|wiredtiger|bdb DIR ITEMS CACHE_MIB\n", stderr);
		return 2;
	}
	load();
	while (fgets(line, sizeof(line), stdin))
		if (sscanf(line, "%15s %u %lu", what, &threads, &count) == 3 &&
			threads > 0 && threads <= THREADS_MAX)
			measure(strcmp(what, "insert") == 0, threads, count);
	return 0; /* the folder goes away: nothing need be closed well */
}
