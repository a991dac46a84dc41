# SPDX-License-Identifier: Apache-2.0
# Makes the table of completions from the help texts of the programs, each after a line "==== PROGRAM".
# A line of it has, separated by tabs:
#
#   COMMAND   word      WORD              TEXT    a command of COMMAND
#   COMMAND   later     WORD              TEXT    a word after the first operand
#   COMMAND   option    OPTION   VALUE    TEXT    VALUE is empty, or as the help has it: FILE, tcp|verbs
#   COMMAND   operand            VALUE            the operands: FILE, DIR|STORE
#   -o        mount     OPTION   VALUE    TEXT    an option of a mount
#
# The help texts keep to this:
#
# - "Usage:", and the lines below it that begin with a program, have a command in small letters, options,
#   and operands in capitals. A line that begins with [ goes on with the one before.
# - Two blanks, and then options or a word, begin an explanation. (Six: an option with a long name only.)
#   Its text stands after two blanks more, or in the next line. Deeper lines go on with it.
# - A text for a completion ends with its first sentence, or before a colon or parenthesis.
# - Below "Options:" (weftd) explanations are of mount options.

function put(command, kind, word, value, text,    key) {
	key = command "\t" kind "\t" word
	if (!(key in values)) {
		keys[++key_count] = key
		values[key] = value
		texts[key] = beginning(text)
	}
	if (kind == "operand" && index("|" values[key] "|", "|" value "|") == 0)
		values[key] = values[key] "|" value
	if (values[key] == "") values[key] = value
	if (texts[key] == "") texts[key] = beginning(text)
}

# As much of a text as a line of completions needs.
function beginning(text) {
	sub(/( \(|; |\. |: ).*/, "", text)
	return text
}

# ---- lines of Usage

function usage(line,    count, i, word, head, part, parts) {
	gsub(/\(.*\)/, "", line)
	sub(/ +$/, "", line)
	count = split(line, word, " +")
	head = word[1]
	for (i = 2; i <= count && word[i] ~ /^[a-z][a-z|]*$/; i++) head = head " " word[i]
	line = ""
	for (; i <= count; i++) line = line " " word[i]
	parts = split(head, part, " ")
	sub(/ ?[^ ]*$/, "", head)
	parts = split(part[parts], part, "|") # guard|tree
	first_command = command_count + 1
	for (i = 1; i <= parts; i++) {
		if (head != "") put(head, "word", part[i], "", "")
		if (line == " ...") continue # has a help of its own
		commands[++command_count] = (head == "" ? "" : head " ") part[i]
		usage_words(commands[command_count], line)
	}
}

function usage_words(command, line,    count, i, k, word, names, name) {
	gsub(/\[:PORT\]/, ":PORT", line)
	gsub(/\[OPTION\.\.\.\]|\[options\]/, "", line)
	gsub(/[][|] /, " ", line)
	gsub(/ \[/, " ", line)
	gsub(/\](\.\.\.)?/, "", line)
	count = split(line, word, " +")
	for (i = 1; i <= count; i++) {
		if (word[i] ~ /^-/) {
			names = split(word[i], name, "|") # -d|--directory
			if (takes_value(name[1])) i++
			for (k = 1; k <= names; k++)
				put(command, "option", name[k], takes_value(name[1]) ? word[i] : "", "")
		} else if (word[i] ~ /^[A-Z][A-Z]/ && word[i] != "COMMAND") {
			sub(/\.\.\.$/, "", word[i])
			put(command, "operand", "", word[i], "")
		}
	}
}

# In a line of Usage nothing else tells the value of an option from an operand.
function takes_value(option) {
	return option ~ /^(-o|-d|-c|-m|--client|--node|--host|--store)$/
}

# ---- explanations

function explain(line, text,    names, count, i, k, name, value) {
	sub(/\[=[A-Z]+\]$/, "", line) # is given with the option, or not at all
	count = split(line, name, /,? /)
	if (line ~ /^-/) {
		value = name[count] ~ /^-/ ? "" : name[count--]
		for (k = 1; k <= command_count; k++)
			for (i = 1; i <= count; i++) put(commands[k], "option", name[i], value, text)
	} else if (of_mounts) {
		for (i = 1; i <= count && name[i] != "and"; i++) {
			value = name[i] ~ /=/ ? substr(name[i], index(name[i], "=") + 1) : ""
			sub(/=.*/, "=", name[i])
			put("-o", "mount", name[i], value, text)
		}
	} else if (line ~ /^[a-z]+( [A-Z]+)?$/) {
		put(topic, topic == "weft dump" ? "later" : "word", name[1], "", text)
	}
}

function end_explanation() {
	if (begun != "") explain(begun, begun_text)
	begun = ""
}

/^==== / {
	end_explanation()
	topic = substr($0, 6)
	command_count = in_examples = of_mounts = in_usage = 0
	next
}
/^Usage: / {
	in_usage = 1
	usage(substr($0, 8))
	next
}
in_usage && /^ +(weft|mkfs|fsck)/ {
	sub(/^ +/, "")
	usage($0)
	next
}
in_usage && /^ +\[/ {
	for (k = first_command; k <= command_count; k++) usage_words(commands[k], $0)
	next
}
/^Options:/ { of_mounts = 1 }
/^Examples?:/ { in_examples = 1 }
/^$/ { in_examples = in_usage = 0 }
in_examples || in_usage { next }
/^  [^ ]/ || /^      --/ {
	end_explanation()
	sub(/^ +/, "")
	begun = $0
	begun_text = ""
	if (match(begun, /  +/)) {
		begun_text = substr(begun, RSTART + RLENGTH)
		begun = substr(begun, 1, RSTART - 1)
	}
	next
}
/^   / && begun != "" {
	sub(/^ +/, "")
	begun_text = begun_text (begun_text == "" ? "" : " ") $0
	next
}
!/^   / { end_explanation() }

END {
	end_explanation()
	for (i = 1; i <= key_count; i++) print keys[i] "\t" values[keys[i]] "\t" texts[keys[i]]
}
