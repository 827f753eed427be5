-- Units of a window taken in advance by proxies, to be used before the window that they were
-- counted in ends. Twin of crates/algorithms/src/granted.rs.
--
-- Included after the functions M of a window whose state is a string, of which it replaces load and
-- encode; added: settle, grant, leased. Of the window it takes
--   named(w, start)            'out' or 'out_before' if the count that started then still counts
--   give_back(w, slot, units)  takes units off that count
--   open(w)                    when the count of now started, and for how long it goes on
--   follows(w)                 whether a count that is not of now (w.same) is the one before
--
-- State: the window's own, then ":<units out of the count of now>:<of the one before>:<proxies
-- that were granted them>:<those of the one before>"; a proxy is one character. Only while some are
-- out, that is: granted and not accounted for.
--
-- w: lease (the arguments: ttl, want, proxy, settle), out, out_before, marks, marks_before

local STATE_OUT = '^(%l[%d:]*):(%d+):(%d+):([;-z]*):([;-z]*)$'

local load_plain, encode_plain = M.load, M.encode

local function with_out(w, text)
  if w.out + w.out_before == 0 then
    return text
  end
  return string.format('%s:%.0f:%.0f:%s:%s', text, w.out, w.out_before, w.marks, w.marks_before)
end

function M.load(w, text)
  w.out, w.out_before, w.marks, w.marks_before = 0, 0, '', ''
  local plain, out, before, marks, marks_before = string.match(text or '', STATE_OUT)
  if not plain then
    return load_plain(w, text)
  end
  local problem = load_plain(w, plain)
  if problem then
    return problem
  end
  w.out, w.out_before, w.marks, w.marks_before = out + 0, before + 0, marks, marks_before
  if not sound(w.out + w.out_before, 1) then
    return CORRUPT
  end
  w.shifted = w.shifted and with_out(w, w.shifted)
  if w.same then
    return
  elseif follows(w) then
    w.out_before, w.marks_before = w.out, w.marks
  else -- what is outstanding of another window does not count any more
    w.out_before, w.marks_before = 0, ''
  end
  w.out, w.marks = 0, ''
end

function M.encode(w)
  return with_out(w, encode_plain(w))
end

local roll -- done when it was read

-- include: lib/granted.lua

function M.leased(w)
  return w.out
end
