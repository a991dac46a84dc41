# SPDX-License-Identifier: Apache-2.0
# awk -v table=FILE -f fill.awk TEMPLATE: puts the table in place of @TABLE@, for a shell within single quotes:
# fields end at |, alternatives of values are separated by ;, and there are no single quotes.
/@TABLE@/ {
	split($0, around, "@TABLE@")
	printf "%s", around[1]
	while ((getline line < table) > 0) {
		gsub(/'/, "\342\200\231", line)
		gsub(/\|/, ";", line)
		gsub(/\t/, "|", line)
		printf "%s%s", separator, line
		separator = "\n"
	}
	print around[2]
	next
}
{ print }
