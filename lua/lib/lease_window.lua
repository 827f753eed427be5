-- Units of a window granted in advance to proxies, to be used before the window that they were
-- charged to ends. Twin of crates/algorithms/src/window.rs.
--
-- Included after the functions M of a window whose state is a string. Replaces load and encode;
-- adds settle, grant and leased. The window defines
--   named(w, start)            'out' or 'out_before' if the count that started then still counts
--   give_back(w, slot, units)  removes units from that count
--   open(w)                    when the current count started, and how long it still lasts
--   follows(w)                 whether a count that is not current (w.same) is the one before
--
-- State: the window's own, then ":<outstanding units of the current count>:<of the one before>:
-- <proxies with grants of the current count>:<of the one before>"; a proxy is one character. Only
-- while units are outstanding.
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
  else -- outstanding units of another window no longer count
    w.out_before, w.marks_before = 0, ''
  end
  w.out, w.marks = 0, ''
end

function M.encode(w)
  return with_out(w, encode_plain(w))
end

local roll -- nil: load() does it

-- include: lib/granted.lua

function M.leased(w)
  return w.out
end
