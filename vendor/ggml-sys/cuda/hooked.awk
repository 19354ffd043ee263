# hooked.awk hooks FILE: FILE with what `hooks` puts behind lines of the file named in `file`. As hooked() of build/hooks.rs.
function behind_bar(text) { return substr(text, index(text, "|") + 1) }
NR == FNR {
    if (substr($0, 1, length(file) + 1) != file "|") { next }
    rest = behind_bar($0)
    line = substr(rest, 1, index(rest, "|") - 1)
    n[line] = 0
    # Code may have bars itself.
    what[line] = what[line] behind_bar(rest) "\n"
    next
}
{ print }
$0 in n { n[$0]++; printf "%s", what[$0] }
END { for (line in n) if (n[line] != 1) { print n[line] " times in " file ": " line > "/dev/stderr"; exit 1 } }
