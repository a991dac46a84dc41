/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of samples; see history.h. */
#include "fs/history.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/rt/rt.h"
#include "fs/latency.h"
#include "fs/metrics.h"

/* Each is summed up over the other nodes if it has a value for each of them. */
static const char *const metric_series[] = {
	"weft_session_read_bytes_total",
	"weft_session_written_bytes_total",
	"weft_cache_hits_total",
	"weft_cache_misses_total",
	"weft_cache_frames",
	"weft_cache_free_frames",
	"weft_cache_dirty_pages",
	"weft_log_bytes",
	"weft_log_used_bytes",
	"weft_log_flushes_total",
	"weft_device_pages_read_total",
	"weft_device_pages_written_total",
	"weft_device_flushes_total",
	"weft_space_bytes",
	"weft_space_free_bytes",
	"weft_memory_resident_bytes",
	"weft_cluster_epoch",
	"weft_peer_up",
	"weft_peer_waiting_requests",
	"weft_peer_messages_sent_total",
	"weft_peer_messages_received_total",
	"weft_peer_sent_bytes_total",
	"weft_peer_received_bytes_total",
};

/* Requests by kind. A request that waits for another program's lock (setlkw) is in no group, since
 * that program has its time. */
enum group { GROUP_READ, GROUP_WRITE, GROUP_SYNC, GROUP_OTHER, GROUPS };
static const char *const group_names[GROUPS] = {"read", "write", "sync", "other"};

enum group_series { GROUP_COUNT, GROUP_P50, GROUP_P99, GROUP_SERIES };
static const char *const group_series_names[GROUP_SERIES] = {"count", "p50_s", "p99_s"};

#define SERIES (ARRAY_SIZE(metric_series) + GROUPS * GROUP_SERIES)

struct sample {
	int64_t at_ms;
	double value[SERIES]; /* NAN: none */
};

/* Requests answered within 2^(LATENCY_POWER_FIRST + i) ns; the last is their number. */
struct group_counts {
	uint64_t below[LATENCY_POWERS + 1];
};

struct history {
	struct sample sample[HISTORY_SAMPLES];
	unsigned next;                   /* place of the next sample */
	unsigned count;                  /* samples that are there */
	struct group_counts last[GROUPS]; /* at the newest sample */
};

/* ---- a sample ---------------------------------------------------------------------------- */

static enum group group_of(const char *request)
{
	if (strcmp(request, "read") == 0)
		return GROUP_READ;
	if (strcmp(request, "write") == 0)
		return GROUP_WRITE;
	if (strcmp(request, "fsync") == 0 || strcmp(request, "fsyncdir") == 0 ||
		strcmp(request, "syncfs") == 0)
		return GROUP_SYNC;
	return strcmp(request, "setlkw") == 0 ? GROUPS : GROUP_OTHER;
}

static void count_groups(const json_t *status, struct group_counts of[GROUPS])
{
	const char *request;
	json_t *one, *below;
	size_t i;

	memset(of, 0, GROUPS * sizeof(*of));
	json_object_foreach(json_object_get(status, "requests"), request, one)
	{
		enum group g = group_of(request);

		if (g == GROUPS)
			continue;
		json_array_foreach(json_object_get(one, "below"), i, below)
		{
			if (i < LATENCY_POWERS)
				of[g].below[i] += (uint64_t)json_integer_value(below);
		}
		of[g].below[LATENCY_POWERS] +=
			(uint64_t)json_integer_value(json_object_get(one, "count"));
	}
}

/* Seconds within which that part of the requests between two counts was answered, linear within a
 * power of two (as Prometheus's histogram_quantile). NAN: there was none. */
static double counts_quantile(
	const struct group_counts *from, const struct group_counts *to, double part)
{
	double rank = part * (double)(to->below[LATENCY_POWERS] - from->below[LATENCY_POWERS]);
	double low_ns = 0, seen = 0;

	if (!(rank > 0))
		return NAN;
	for (unsigned i = 0; i < LATENCY_POWERS; i++) {
		double high_ns = (double)(1ull << (LATENCY_POWER_FIRST + i));
		double below = (double)(to->below[i] - from->below[i]);

		if (below >= rank)
			return (low_ns + (high_ns - low_ns) * (rank - seen) / (below - seen)) /
			       1e9;
		low_ns = high_ns;
		seen = below;
	}
	return low_ns / 1e9; /* or longer */
}

static void take_sample(struct sample *s, int64_t at_ms, const json_t *status,
	const struct group_counts last[GROUPS], struct group_counts now[GROUPS])
{
	double *value = s->value;

	s->at_ms = at_ms;
	for (unsigned i = 0; i < ARRAY_SIZE(metric_series); i++)
		if (!metrics_value(status, metric_series[i], value++))
			value[-1] = NAN;
	count_groups(status, now);
	for (unsigned g = 0; g < GROUPS; g++) {
		value[GROUP_COUNT] = (double)now[g].below[LATENCY_POWERS];
		value[GROUP_P50] = counts_quantile(&last[g], &now[g], 0.5);
		value[GROUP_P99] = counts_quantile(&last[g], &now[g], 0.99);
		value += GROUP_SERIES;
	}
}

/* ---- the ring ---------------------------------------------------------------------------- */

struct history *history_open(void)
{
	return rt_alloc(sizeof(struct history));
}

void history_close(struct history *h)
{
	rt_free(h);
}

void history_add(struct history *h, int64_t at_ms, const json_t *status)
{
	struct group_counts now[GROUPS];

	take_sample(&h->sample[h->next], at_ms, status, h->last, now);
	memcpy(h->last, now, sizeof(now));
	h->next = (h->next + 1) % HISTORY_SAMPLES;
	h->count = MIN(h->count + 1, HISTORY_SAMPLES);
}

static void print_sample(FILE *to, const struct sample *s)
{
	fprintf(to, "[%" PRId64, s->at_ms);
	for (unsigned i = 0; i < SERIES; i++) {
		if (isnan(s->value[i]))
			fputs(",null", to);
		else
			fprintf(to, ",%.15g", s->value[i]);
	}
	fputc(']', to);
}

static void print_names(FILE *to)
{
	for (unsigned i = 0; i < ARRAY_SIZE(metric_series); i++)
		fprintf(to, "%s\"%s\"", i ? "," : "", metric_series[i]);
	for (unsigned g = 0; g < GROUPS; g++)
		for (unsigned i = 0; i < GROUP_SERIES; i++)
			fprintf(to, ",\"%s_%s\"", group_names[g], group_series_names[i]);
}

void history_print(
	FILE *to, const struct history *h, int64_t after_ms, int64_t now_ms, const json_t *now)
{
	struct group_counts counts[GROUPS];
	struct sample last;

	fprintf(to, "{\"step_ms\":%u,\"series\":[", HISTORY_STEP_MS);
	print_names(to);
	fputs("],\"samples\":[", to);
	for (unsigned i = 0; i < h->count; i++) {
		const struct sample *s = &h->sample[(h->next + HISTORY_SAMPLES - h->count + i) %
						    HISTORY_SAMPLES];

		if (s->at_ms <= after_ms)
			continue;
		print_sample(to, s);
		fputs(",\n", to);
	}
	take_sample(&last, now_ms, now, h->last, counts);
	print_sample(to, &last);
	fputs("]}\n", to);
}
