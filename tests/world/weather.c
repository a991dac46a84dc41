/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of links between simulated nodes. */
#include "engine/rt/rt_sim.h"
#include "tests/world/expect.h"
#include "tests/world/weather.h"

struct weather weather;

static void weather_wait(uint64_t ns)
{
	uint64_t end = rt_now_ns() + ns;

	while (!atomic_load(&weather.clears) && rt_now_ns() < end)
		rt_sleep_ns(MIN(end - rt_now_ns(), 10000000ull));
}

/* Shorter than a silent link lives, or longer, or so long that nodes go on without it. */
static uint64_t weather_lasts(void)
{
	switch (pick(4)) {
	case 0:
		return pick(WEATHER_STALL_NS / 2);
	case 1:
		return pick(2 * WEATHER_STALL_NS);
	case 2:
		return WEATHER_STALL_NS + pick(300000000);
	default:
		return WEATHER_STALL_NS + 500000000 + pick(400000000);
	}
}

static void weather_turn(struct world *w)
{
	unsigned a = pick(w->nodes), b = (a + 1 + pick(w->nodes - 1)) % w->nodes;
	unsigned from = w->node[a].sim, to = w->node[b].sim;
	bool silent = pick(4), both = pick(2);

	if (silent) {
		weather.silent++;
		rt_sim_net_block(from, to, true);
		if (both)
			rt_sim_net_block(to, from, true);
		weather_wait(pick(2) ? 0 : pick(5000000));
	}
	if (!silent || pick(3) == 0) {
		weather.cuts++; /* what is on its way is lost */
		rt_sim_net_cut(from, to);
	}
	if (!silent)
		return;
	weather_wait(weather_lasts());
	if (pick(4) == 0)
		rt_sim_net_cut(from, to);
	rt_sim_net_block(from, to, false);
	if (both) {
		weather_wait(pick(2) ? 0 : pick(5000000));
		rt_sim_net_block(to, from, false);
	}
}

static void weather_main(void *arg)
{
	struct world *w = (struct world *)arg;

	while (!atomic_load(&weather.clears)) {
		weather_wait(pick(weather.pause_ns));
		if (!atomic_load(&weather.clears))
			weather_turn(w);
	}
	atomic_fetch_sub(&weather.left, 1);
	rt_wake(&weather.left, INT32_MAX);
}

void weather_begin(struct world *w, uint64_t pause_ns)
{
	weather.pause_ns = pause_ns;
	rt_sim_net_flip(weather.flip_every);
	if (weather.flip_every)
		return;
	atomic_store(&weather.clears, false);
	atomic_store(&weather.left, WEATHER_TASKS);
	for (unsigned i = 0; i < WEATHER_TASKS; i++)
		OK(rt_sim_spawn_on(0, "weather", weather_main, w));
}

/* From here on all links are well, or will be soon. */
void weather_end(void)
{
	uint32_t left;

	rt_sim_net_flip(0);
	weather.flips += rt_sim_net_flips();
	atomic_store(&weather.clears, true);
	while ((left = atomic_load(&weather.left)))
		rt_wait(&weather.left, left, RT_FOREVER);
}
