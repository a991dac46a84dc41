/* SPDX-License-Identifier: Apache-2.0 */
/* The scrub of the daemon's store, as the control socket and the status have it. */
#include <string.h>

#include "fs/daemon.h"

#define NS_IN_S 1000000000

int scrub_attach(struct daemon *d, struct weft_error *err)
{
	int rc = source_is_client(&d->source) ? 0 : scrub_open(&d->scrub, d->volume);

	return rc < 0 ? weft_error(err, rc, "cannot start a task: %s", strerror(-rc)) : 0;
}

static json_t *findings_describe(struct scrub *s, unsigned count)
{
	json_t *list = json_array();
	char text[SCRUB_TEXT_MAX];

	for (unsigned i = 0; i < count && scrub_finding(s, i, text); i++)
		/* A path need not be UTF-8, which jansson requires. */
		json_array_append_new(list,
			json_string(text)
				?: json_string("a file whose name is not valid UTF-8; the log "
					       "of weftd has it"));
	return list;
}

static void put_number(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

json_t *scrub_describe(struct daemon *d)
{
	static const char *const states[] = {"none", "running", "stopped", "ended"};
	json_t *o = json_object();
	struct scrub_status st;
	struct space_stat space;
	const struct disk_scrub *p = &st.progress;

	scrub_status(d->scrub, &st);
	space_stat(d->volume->space, &space);
	json_object_set_new(o, "state",
		json_string(p->state == DISK_SCRUB_RUNNING && st.halted ? "halted"
									 : states[p->state]));
	put_number(o, "running", p->state == DISK_SCRUB_RUNNING && !st.halted);
	put_number(o, "position_bytes", p->next * PAGE_SIZE);
	put_number(o, "store_bytes", st.page_count * PAGE_SIZE);
	put_number(o, "used_bytes", (space.total_pages - space.free_pages) * PAGE_SIZE);
	put_number(o, "pages", p->pages);
	put_number(o, "damaged", p->damaged);
	put_number(o, "healed", st.healed);
	put_number(o, "rate_bytes", p->rate_bytes);
	put_number(o, "began_s", (uint64_t)p->began_ns / NS_IN_S);
	put_number(o, "ended_s", (uint64_t)p->ended_ns / NS_IN_S);
	json_object_set_new(o, "findings", findings_describe(d->scrub, st.findings));
	return o;
}

json_t *scrub_command(void *arg, const struct control_scrub *how)
{
	struct daemon *d = arg;

	if (!d->scrub)
		return json_pack("{s:s}", "error",
			"this node has no store; run it on the nodes that have one");
	if (how->stop)
		scrub_stop(d->scrub);
	else if (scrub_start(d->scrub, how->rate_bytes, how->anew))
		return json_pack("{s:s}", "error", 
			"this weftd has no mount, or is being closed: mount the node, or run "
			"it by weft node start");
	return scrub_describe(d);
}
