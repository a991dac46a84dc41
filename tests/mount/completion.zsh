# SPDX-License-Identifier: Apache-2.0
#   zsh -f completion.zsh bash|zsh FOLDER LINE...
# Types each LINE and a tab into a shell on a terminal, with the completions of FOLDER. Prints
# "LINE => the line after that"; for a line that ends in ?, the list of choices in place of that.
zmodload zsh/zpty
shell=$1 folder=$2
shift 2
begin_bash() {
	zpty shell "env TERM=dumb bash --norc --noprofile -i"
	show='bind -x '\''"\C-_": echo; echo "<<$READLINE_LINE>>"; READLINE_LINE='\'
	setup=". $folder/weft; bind 'set page-completions off'; bind 'set completion-query-items 0'"
	setup+="; bind 'set enable-bracketed-paste off'; bind '\"\\C-o\": possible-completions'; $show"
}
begin_zsh() {
	zpty shell "env TERM=dumb zsh -f -i"
	setup="RPS1=; unset zle_bracketed_paste; fpath=($folder \$fpath); autoload -Uz compinit; compinit -D -u"
	setup+="; LISTMAX=10000; show() { print -r -- ''; print -r -- \"<<\$BUFFER>>\"; BUFFER=; zle redisplay }"
	setup+="; zle -N show; bindkey '^_' show; bindkey '^O' list-choices"
}
read_until() {
	local part
	REPLY=
	while zpty -r shell part; do
		REPLY+=$part
		[[ $REPLY != *$1* ]] || return 0
	done
	print "the shell has ended"
	exit 1
}

begin_$shell
zpty -w shell "PS1=; stty -echo cols 160 rows 1000; $setup; echo REA''DY"
read_until READY
for line; do
	key=$'\t'
	[[ $line != *\? ]] || key=$'\x0f'
	zpty -w -n shell "${line%\?}$key"$'\x1f'
	read_until '>>'
	if [[ $line == *\? ]]; then
		print -r -- "$line => ${(j: :)${=${REPLY%<<*}}//$'\r'/}"
	else
		print -r -- "$line => ${${REPLY##*<<}%%>>*}"
	fi
done
zpty -d shell
