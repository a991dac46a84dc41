/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of the daemon's state to the log, to programs that wait at the control socket, and to the
 * service manager. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/daemon.h"
#include "fs/service.h"

void report_waits(void *arg, const char *who)
{
	service_tell_status("Waiting for %s.", who);
}

void report_serves_on(void *arg, const char *who)
{
	struct daemon *d = arg;

	service_tell_status("Unmounted; serves the store to %s.", who);
	control_dismiss(d->control,
		json_pack("{s:i,s:s}", "serves_on_as", (int)d->source.node, "to", who));
}

void report_awaited(void *arg, const char *who, unsigned seconds)
{
	struct daemon *d = arg;

	service_tell_status("Closing, waiting for %s.", who);
	control_say(d->control, json_pack("{s:i,s:s,s:i}", "node", (int)d->source.node,
					"awaits", who, "seconds", (int)seconds));
}

void report_unwritten(struct daemon *d, int why, const struct volume_rest *rest)
{
	char lost[160] = "";

	if (rest->lost)
		snprintf(lost, sizeof(lost),
			"; up to %llu pages (%.1f MiB) that were not synced are LOST",
			(unsigned long long)rest->lost, pages_mib(rest->lost));
	weft_log(3,
		"closing %s: %s%s; %llu pages (%.1f MiB) wait in its log, and the next "
		"mount "
		"writes them: %s",
		d->options.store, strerror(-why), lost, (unsigned long long)rest->kept,
		pages_mib(rest->kept),
		why == -ENOSPC      ? "make room on its disk before that"
		: why == -EHOSTDOWN ? "start the nodes that are away before that"
				    : "see to its device before that");
	if (d->control)
		control_say(d->control,
			json_pack("{s:s, s:I, s:I}", "unwritten", strerror(-why),
				"lost_pages", (json_int_t)rest->lost, "kept_pages",
				(json_int_t)rest->kept));
}

void report_mounted(const struct daemon *d)
{
	const struct volume *v = d->volume;
	char text[160] = "", met[60] = "";

	if (v->calls)
		snprintf(met, sizeof(met), ", the other nodes met after %.2f s",
			(double)v->recovery.met_ns / 1e9);
	if (!v->recovery.was_clean)
		snprintf(text, sizeof(text),
			", recovered from its log: %.1f MiB, %llu pages redone in %.2f "
			"s%s, "
			"served after %.2f s",
			(double)v->recovery.log_bytes / (1 << 20),
			(unsigned long long)v->recovery.pages,
			(double)v->recovery.redone_ns / 1e9, met,
			(double)v->recovery.took_ns / 1e9);
	if (d->unmounted) {
		weft_log(6, "%s served to the other nodes, without a mount%s",
			d->options.store, text);
		service_tell_status("Serves %s to the other nodes, without a mount.",
			d->options.store);
	} else {
		weft_log(6, "%s mounted on %s%s", d->options.store, d->options.directory,
			text);
		service_tell_status("%s is mounted on %s.", d->options.store,
			d->options.directory);
	}
	if (d->unguarded < 0) /* ordinary users and some containers */
		weft_log(6,
			"no guardian ends the connection if this weftd is killed: %s; "
			"`umount -f` does",
			strerror(-d->unguarded));
}
