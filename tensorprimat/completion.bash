# In bash a word ends at =, so that of model=lla only lla is replaced.
_tprimat() {
  local line=${COMP_LINE:0:COMP_POINT} candidates cut
  local word=${line##* }
  case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
@cases@
  esac
  if ((COMP_CWORD == 1)); then candidates=@names@; fi
  COMPREPLY=($(compgen -W "$candidates" -- "$word"))
  [[ $word != *=* ]] || cut=${word%"${word##*=}"}
  COMPREPLY=("${COMPREPLY[@]#"${cut:-}"}")
  [[ ${COMPREPLY[0]:-} != *= ]] || compopt -o nospace
}
complete -o default -F _tprimat tprimat
