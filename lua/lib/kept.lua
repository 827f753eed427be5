-- Writes the state of a limit's bucket. Needs load.lua, and of check.lua `call`, `injected` and the TTLs.
--
-- A string state is kept for the next check if that has the same form and bucket: a bucket that many
-- checks in a row use, such as that of a limit on all requests, is read once and written once.

local unwritten = false -- whether a limit of the current form keeps an unwritten state

-- Stores the usage, if it changed (`used`), or else a shift of the time base.
local function store(l, used, reset)
  local algorithm = l.algorithm
  local counts = reset + (algorithm.linger_ms or 0)
  local ttl = injected and TTL_INJECTED_MS
    or counts + TTL_MARGIN_MS + math.floor(math.min(counts, SPREAD_MAX_MS) * spread)
  if not algorithm.encode then
    if used then
      algorithm.save(l, ttl)
    else
      algorithm.save_shifted(l, ttl)
    end
  elseif used and l.keep then
    l.px, l.shifted, unwritten = ttl, false, true
  else
    call('SET', l.key, used and algorithm.encode(l) or l.shifted, 'PX', ttl)
    l.px = false
  end
end

-- Writes the states that the limits of a form no longer keep; with `all`, every unwritten one.
local function write(form, all)
  unwritten = false
  for i = 1, form.count do
    local l = form[i]
    if l.px and (all or not l.keep) then
      call('SET', l.key, l.algorithm.encode(l), 'PX', l.px)
      l.px = false
    end
    unwritten = unwritten or l.px
  end
end
