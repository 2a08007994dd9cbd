#compdef tprimat
_tprimat() {
  local -a all
  local candidates
  case "${words[2]} ${words[3]}" in
@cases@
  esac
  ((CURRENT == 2)) && candidates=@names@
  all=(${=candidates})
  compadd -S '' -- $all
  _files
}
compdef _tprimat tprimat
