/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of peers.h over a provider that has other nodes, and over one that has none.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/coherence/driver/driver.h"
#include "engine/coherence/peers.h"
#include "engine/coherence/protocol/protocol.h"

static void a_node_alone_needs_no_other(void **state)
{
	struct coherence_directory directory;
	struct coherence_records records;
	struct coherence_change change;
	struct coherence *c;
	bool served = false;

	assert_int_equal(coherence_single_open(&c, 0), 0);
	assert_null(c->ops->peers);
	assert_int_equal(coherence_start(c), 0);
	coherence_message(c, NULL, NULL);
	coherence_event(c, NULL, NULL);
	coherence_lend(c);
	coherence_give_up(c);
	coherence_vacant(c, 2);
	coherence_dead(c, 2);
	assert_int_equal(coherence_left(c, 2), 0);
	assert_int_equal(coherence_epoch(c, &served), 0);
	assert_true(served);
	coherence_change(c, &change);
	assert_int_equal(change.began_ns, 0);
	coherence_records(c, &records);
	assert_int_equal(records.pages, 0);
	assert_int_equal(coherence_counters(c)->sent[0], 0);
	assert_null(coherence_sent_name(c, 0));
	assert_true(coherence_directory(c, 1, &directory));
	assert_true(directory.settled && !directory.entry && !directory.holders);
	assert_int_equal(coherence_awaited(c, 1), 0);
	coherence_dump(c);
	coherence_stop(c);
	c->ops->close(c);
}

static unsigned home_of(void *owner, uint16_t shard)
{
	return shard == 0 ? 1 : COHERENCE_NO_NODE;
}

static void the_driver_has_all_that_other_nodes_need(void **state)
{
	struct coherence_options o = {
		.self = 1, .shard = 0, .home = home_of, .cluster_epoch = 3};
	const struct coherence_peers_ops *p;
	struct coherence *c;
	bool served;

	assert_int_equal(page_driver_open(&c, &o), 0);
	p = c->ops->peers;
	assert_true(p && p->message && p->event && p->start && p->stop && p->give_up);
	assert_true(p->lend && p->left && p->vacant && p->dead && p->change && p->records);
	assert_true(p->counters && p->directory && p->awaited && p->dump);
	assert_int_equal(p->message_first, PAGE_MESSAGE_FIRST);
	assert_int_equal(p->message_end, PAGE_MESSAGE_END);
	assert_int_equal(coherence_epoch(c, &served), 3);
	assert_string_equal(coherence_sent_name(c, 0), page_message_name(PAGE_MESSAGE_FIRST));
	for (unsigned i = 0; i < PAGE_MESSAGE_END - PAGE_MESSAGE_FIRST; i++)
		assert_string_not_equal(coherence_sent_name(c, i), "?");
	assert_null(coherence_sent_name(c, PAGE_MESSAGE_END - PAGE_MESSAGE_FIRST));
	c->ops->close(c);
	o.self = PAGE_NODES_MAX;
	assert_int_equal(page_driver_open(&c, &o), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_alone_needs_no_other),
		cmocka_unit_test(the_driver_has_all_that_other_nodes_need),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
