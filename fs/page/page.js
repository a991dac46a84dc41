// SPDX-License-Identifier: Apache-2.0
// The page of a daemon: its state from /metrics, its last hour from /history, asked for again every ten
// seconds. All that comes from there is put in as text.
"use strict";

const HOUR_MS = 3600e3, LEAST_SPAN_MS = 120e3, AGAIN_MS = 10e3, LEAST_STEP_MS = 2e3, PATIENCE_MS = 9e3;
const PAGE_BYTES = 4096;

// ---- numbers as text ------------------------------------------------------------------------

function scaled(value, step, units) {
	let at = 0;
	while (at < units.length - 1 && Math.abs(value) >= step) {
		value /= step;
		at++;
	}
	const digits = value !== 0 && Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0;
	return value.toFixed(digits) + units[at];
}

const as_number = v => v !== 0 && Math.abs(v) < 0.1 ? v.toPrecision(1) : scaled(v, 1000, ["", " k", " M", " G", " T"]);
const as_bytes = v => scaled(v, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const as_rate = v => as_bytes(v) + "/s";
const as_percent = v => (v < 100 && v > 99 ? v.toFixed(1) : v.toFixed(0)) + " %";

function as_time(s) {
	if (s === 0 || s >= 1)
		return scaled(s, 1000, [" s"]);
	return s < 1e-3 ? scaled(s * 1e6, 1000, [" µs"]) : scaled(s * 1e3, 1000, [" ms"]);
}

function as_duration(s) {
	if (s < 120)
		return `${Math.floor(s)} s`;
	if (s < 7200)
		return `${Math.floor(s / 60)} min`;
	return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}

const as_clock = (ms, seconds) => new Date(ms).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit",
	...(seconds && {second: "2-digit"}), hour12: false});

// ---- the charts -------------------------------------------------------------------------------
// A line has a value at the sample at i, of the numbers that the sample and the one before it have.

const gauge = name => (now, before) => now[name];
const scaled_gauge = (name, by) => (now, before) => now[name] === null ? null : now[name] * by;

function rate(name, by = 1) {
	return (now, before) => {
		if (!before || now[name] === null || before[name] === null)
			return null;
		return Math.max(0, now[name] - before[name]) * by * 1000 / (now.at - before.at);
	};
}

// null in a time without any request
function hit_rate(now, before) {
	const hits = rate("weft_cache_hits_total")(now, before), misses = rate("weft_cache_misses_total")(now, before);
	return hits + misses > 0 ? 100 * hits / (hits + misses) : null;
}

const GROUPS = [["reads", "read"], ["writes", "write"], ["syncs", "sync"], ["others", "other"]];

const CHARTS = [
	{title: "Requests of programs", unit: "per second", as: as_number,
		lines: GROUPS.map(([text, name]) => [text, rate(name + "_count")])},
	{title: "Response time, median", unit: "", as: as_time,
		lines: GROUPS.map(([text, name]) => [text, gauge(name + "_p50_s")])},
	{title: "Response time, 99th percentile", unit: "", as: as_time,
		lines: GROUPS.map(([text, name]) => [text, gauge(name + "_p99_s")])},
	{title: "Bytes of programs", unit: "through requests", as: as_rate, base: 1024,
		lines: [["read", rate("weft_session_read_bytes_total")], ["written", rate("weft_session_written_bytes_total")]]},
	{title: "Cache hits", unit: "of page requests", as: as_percent, top: 100, lines: [["hits", hit_rate]]},
	{title: "Dirty pages", unit: "newer than their store", as: as_bytes, base: 1024,
		lines: [["dirty", scaled_gauge("weft_cache_dirty_pages", PAGE_BYTES)]]},
	{title: "Log", unit: "would be read by a recovery", as: as_bytes, base: 1024,
		lines: [["used", gauge("weft_log_used_bytes")], ["size", gauge("weft_log_bytes")]]},
	{title: "Device", unit: "pages of the store", as: as_rate, base: 1024,
		lines: [["read", rate("weft_device_pages_read_total", PAGE_BYTES)],
			["written", rate("weft_device_pages_written_total", PAGE_BYTES)]]},
	{title: "Flushes", unit: "per second", as: as_number,
		lines: [["of the log", rate("weft_log_flushes_total")], ["of the store", rate("weft_device_flushes_total")]]},
	{title: "Network, data", unit: "with all other nodes", as: as_rate, base: 1024, cluster: true,
		lines: [["sent", rate("weft_peer_sent_bytes_total")], ["received", rate("weft_peer_received_bytes_total")]]},
	{title: "Network, messages", unit: "per second", as: as_number, cluster: true,
		lines: [["sent", rate("weft_peer_messages_sent_total")], ["received", rate("weft_peer_messages_received_total")]]},
	{title: "Other nodes", unit: "of the cluster", as: as_number, cluster: true,
		lines: [["connected", gauge("weft_peer_up")],
			["requests that wait for others", gauge("weft_peer_waiting_requests")]]},
	{title: "Space", unit: "of this node's shard", as: as_bytes, base: 1024,
		lines: [["used", now => now.weft_space_bytes - now.weft_space_free_bytes], ["size", gauge("weft_space_bytes")]]},
	{title: "Memory of the daemon", unit: "resident", as: as_bytes, base: 1024,
		lines: [["resident", gauge("weft_memory_resident_bytes")]]},
];

const HEIGHT = 170, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 20;
const NS = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, text = null) {
	const e = document.createElementNS(NS, name);
	for (const [key, value] of Object.entries(attributes))
		e.setAttribute(key, value);
	if (text !== null)
		e.textContent = text;
	return e;
}

function make_html(name, text = null, words = "") {
	const e = document.createElement(name);
	if (text !== null)
		e.textContent = text;
	if (words)
		e.className = words;
	return e;
}

// The end of an axis from zero, and its step: 1, 2 or 5 of a power of ten, for bytes a power of two.
function axis_of(most, base) {
	if (!(most > 0))
		return {top: 1, step: 1};
	const rough = most / 3;
	if (base === 1024) {
		const power = 2 ** Math.floor(Math.log2(rough));
		const step = Math.max(1, power >= rough ? power : 2 * power);
		return {top: Math.ceil(most / step) * step, step};
	}
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = power * [1, 2, 5, 10].find(n => n * power >= rough);
	return {top: Math.ceil(most / step - 1e-9) * step, step};
}

// The step of the time axis: so that its texts have room.
function span_step_ms(span, width) {
	return 60e3 * ([0.5, 1, 2, 5, 10, 15, 30].find(m => span / (m * 60e3) <= width / 60) || 30);
}

function draw_axes(svg, chart, axis, from, to, x, y) {
	const end = x(to);
	for (let v = 0; v <= axis.top * (1 + 1e-9); v += axis.step) {
		svg.append(make("line", {class: "grid", x1: LEFT, x2: end, y1: y(v), y2: y(v)}));
		svg.append(make("text", {x: LEFT - 6, y: y(v) + 4, "text-anchor": "end"}, chart.as(v)));
	}
	const step = span_step_ms(to - from, end - LEFT);
	for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
		if (x(at) < LEFT + 16 || x(at) > end - 16)
			continue;
		svg.append(make("text", {x: x(at), y: HEIGHT - 5, "text-anchor": "middle"}, as_clock(at, step < 60e3)));
	}
}

// A gap where there is no value; a value alone between two gaps is a dot.
function path_of(points, x, y) {
	let text = "", open = false;
	points.forEach((v, i) => {
		if (v === null) {
			open = false;
			return;
		}
		text += `${open ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
		if (!open)
			text += "h.01";
		open = true;
	});
	return text;
}

function draw_legend(legend, chart, values, i) {
	legend.replaceChildren(...chart.lines.map(([name], n) => {
		const v = values[n][i], entry = make_html("span");
		entry.append(make_html("i", null, "c" + n), `${name} `, make_html("b", v === null || v === undefined ? "–" : chart.as(v)));
		return entry;
	}));
}

// Shows the numbers at the pointer; those of the last sample when it leaves.
function follow_pointer(svg, figure, chart, values, samples, x) {
	const legend = figure.querySelector(".legend"), title = figure.querySelector("time");
	const cross = make("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
	const last = samples.length - 1;
	svg.append(cross);
	svg.onpointermove = event => {
		const at = event.clientX - svg.getBoundingClientRect().left;
		let near = 0;
		samples.forEach((s, i) => {
			if (Math.abs(x(s.at) - at) < Math.abs(x(samples[near].at) - at))
				near = i;
		});
		cross.setAttribute("x1", x(samples[near].at));
		cross.setAttribute("x2", x(samples[near].at));
		cross.setAttribute("visibility", "visible");
		title.textContent = as_clock(samples[near].at, true);
		draw_legend(legend, chart, values, near);
	};
	svg.onpointerleave = () => {
		cross.setAttribute("visibility", "hidden");
		title.textContent = "";
		draw_legend(legend, chart, values, last);
	};
	draw_legend(legend, chart, values, last);
}

function draw_chart(figure, chart, samples) {
	const to = samples[samples.length - 1].at;
	const width = Math.max(240, figure.querySelector(".legend").clientWidth);
	const from = Math.min(samples[0].at, to - LEAST_SPAN_MS);
	const values = chart.lines.map(([, value]) => samples.map((s, i) => {
		const v = value(s, samples[i - 1]);
		return Number.isFinite(v) ? v : null;
	}));
	const axis = chart.top ? {top: chart.top, step: chart.top / 4}
		: axis_of(Math.max(...values.flat().map(v => v === null ? 0 : v)), chart.base);
	const x = at => LEFT + (at - from) / (to - from) * (width - LEFT - RIGHT);
	const y = v => HEIGHT - BOTTOM - v / axis.top * (HEIGHT - TOP - BOTTOM);
	const svg = make("svg", {width, height: HEIGHT, role: "img", "aria-label": chart.title});
	draw_axes(svg, chart, axis, from, to, x, y);
	values.forEach((points, n) => {
		svg.append(make("path", {class: "c" + n, d: path_of(points, i => x(samples[i].at), y)}));
	});
	figure.querySelector("svg").replaceWith(svg);
	follow_pointer(svg, figure, chart, values, samples, x);
}

function make_figure(chart) {
	const figure = make_html("figure"), caption = make_html("figcaption", chart.title + " ");
	caption.append(make_html("small", chart.unit + " "), make_html("time"));
	figure.append(caption, make_html("div", null, "legend"), make("svg"));
	figure.id = "chart-" + chart.title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
	return figure;
}

function draw_charts(samples) {
	const charts = document.getElementById("charts");
	const cluster = samples[samples.length - 1].weft_peer_up !== null;
	for (const chart of CHARTS) {
		if (chart.cluster && !cluster)
			continue;
		if (!chart.figure)
			charts.append(chart.figure = make_figure(chart));
		draw_chart(chart.figure, chart, samples);
	}
	const age = (samples[samples.length - 1].at - samples[0].at) / 1000;
	document.getElementById("span").textContent = age > 3500 ? "Last hour" : `Last ${as_duration(age)}: since the daemon's start`;
}

// ---- the state ----------------------------------------------------------------------------------

// The samples of Prometheus's text format: a list of {name, labels, value}.
function parse_metrics(text) {
	const unescape = s => s.replace(/\\(.)/g, (all, c) => c === "n" ? "\n" : c);
	return [...text.matchAll(/^(\w+)\{(.*)\} (\S+)$/gm)].map(([, name, list, value]) => ({name, value: Number(value),
		labels: Object.fromEntries([...list.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, k, v]) => [k, unescape(v)]))}));
}

class State {
	constructor(text) {
		this.samples = parse_metrics(text);
	}

	of(name, label, value) {
		const found = this.samples.find(s => s.name === name && (!label || s.labels[label] === value));
		return found ? found.value : undefined;
	}

	ids(label) {
		return this.samples.filter(s => label in s.labels).map(s => s.labels[label]);
	}
}

function problems_of(state, peers) {
	const list = [];
	const add = (is, text) => is && list.push(text);
	add(state.of("weft_failed"), "The log has failed: the mount accepts no changes.");
	add(state.of("weft_device_checksum_failures_total"),
		`Wrong checksums of pages of the store: ${state.of("weft_device_checksum_failures_total")}.`);
	add(state.of("weft_cache_write_failures_total"),
		`Writes of pages that failed: ${state.of("weft_cache_write_failures_total")}.`);
	add(state.of("weft_cluster_shard_served") === 0, "This node's shard waits for nodes that are away.");
	for (const id of peers) {
		const away = state.of("weft_peer_away_seconds", "peer", id), waiting = state.of("weft_peer_waiting_requests", "peer", id);
		add(away !== undefined && !state.of("weft_peer_unmounted", "peer", id), `Node ${id} is away for ${as_duration(away)}.`);
		add(waiting, `${waiting} ${waiting === 1 ? "request waits" : "requests wait"} for node ${id}.`);
		add(state.of("weft_peer_checksum_errors_total", "peer", id), `Data from node ${id} changed on the way.`);
	}
	add(state.of("weft_space_available_bytes") < 0.05 * state.of("weft_space_bytes"), "Less than 5 % of the space is available.");
	return list;
}

function show_problems(list) {
	document.getElementById("problems").replaceChildren(...(list.length ? list.map(text => make_html("li", text))
		: [make_html("li", "This node knows of no problem.", "good")]));
}

function node_state(state, id, own) {
	if (id === own)
		return ["this node", false];
	if (state.of("weft_peer_up", "peer", id))
		return ["connected", false];
	const away = as_duration(state.of("weft_peer_away_seconds", "peer", id) || 0);
	return state.of("weft_peer_unmounted", "peer", id) ? [`unmounted, away for ${away}`, false] : [`away for ${away}`, true];
}

function show_nodes(state, own, peers) {
	const body = document.querySelector("#nodes tbody");
	const ids = [...new Set([own, ...peers])].sort((a, b) => a - b);
	document.getElementById("nodes").hidden = !peers.length;
	body.replaceChildren(...ids.map(id => {
		const row = make_html("tr"), [text, bad] = node_state(state, id, own);
		const cell = (value, as) => row.append(make_html("td", value === undefined ? "" : as(value)));
		row.append(make_html("td", id), make_html("td", text, bad ? "bad" : ""));
		cell(state.of("weft_peer_waiting_requests", "peer", id), as_number);
		cell(state.of("weft_peer_sent_bytes_total", "peer", id), as_bytes);
		cell(state.of("weft_peer_received_bytes_total", "peer", id), as_bytes);
		cell(state.of("weft_cached_pages", "home", id), as_number);
		cell(state.of("weft_cached_dirty_pages", "home", id), as_number);
		return row;
	}));
}

function show_state(text) {
	const state = new State(text), info = state.samples.find(s => s.name === "weft_info").labels;
	const peers = [...new Set(state.ids("peer"))], epoch = state.of("weft_cluster_epoch");
	const name = info.label || info.mount_point;
	const about = [`version ${info.version}`, `volume ${info.volume}`, info.store, `on ${info.mount_point}`,
		`up for ${as_duration(state.of("weft_uptime_seconds"))}`];
	if (epoch !== undefined)
		about.push(`epoch ${epoch}`);
	if (state.of("weft_read_only"))
		about.push("read-only");
	document.getElementById("title").textContent = info.node ? `${name}, node ${info.node}` : name;
	document.title = `${document.getElementById("title").textContent} - weft`;
	document.getElementById("about").textContent = about.join(" · ");
	show_problems(problems_of(state, peers));
	show_nodes(state, info.node, peers);
}

// ---- again and again --------------------------------------------------------------------------

let kept = [], shown = []; // samples of the hour that the daemon keeps; and with that of now

function named(series, row) {
	const sample = {at: row[0]};
	series.forEach((name, i) => sample[name] = row[i + 1]);
	return sample;
}

// The daemon may have been started again meanwhile: then its counters, and its hour, begin anew.
function add_history(answer) {
	const rows = answer.samples.map(row => named(answer.series, row)), now = rows.pop();
	const last = kept[kept.length - 1];
	if (last && [...rows, now].some(s => s.read_count + s.other_count < last.read_count + last.other_count))
		kept = [];
	kept = [...kept, ...rows].filter(s => s.at >= now.at - HOUR_MS);
	const newest = kept[kept.length - 1];
	// a rate of a moment would say little
	shown = newest && now.at - newest.at < LEAST_STEP_MS ? kept : [...kept, now];
	draw_charts(shown);
}

async function ask(path) {
	const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS)});
	if (!answer.ok)
		throw new Error(`${path}: ${answer.status}`);
	return answer;
}

async function show_all() {
	const stale = document.getElementById("stale");
	try {
		const after = kept.length ? kept[kept.length - 1].at : 0;
		const [metrics, history] = await Promise.all([ask("metrics"), ask(`history?after=${after}`)]);
		show_state(await metrics.text());
		add_history(await history.json());
		stale.hidden = true;
		document.body.dataset.shown = Date.now();
	} catch (error) {
		stale.textContent = `The daemon does not answer since ${as_clock(Date.now(), true)} (${error.message}). ` +
			"The numbers below are old.";
		stale.hidden = false;
	}
	setTimeout(show_all, AGAIN_MS);
}

addEventListener("resize", () => shown.length && draw_charts(shown));
show_all();
