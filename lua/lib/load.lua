-- Reads the state of a limit's bucket. Needs state.lua and `now`.

-- Reads the state at `key` for a limit, unless it was kept; returns CORRUPT if it is corrupt.
-- `next_key` is the limit's key in the next check: if equal, the state is kept (kept.lua).
local function load(l, key, next_key)
  if l.keep then
    l.keep = next_key == key
    return
  end
  l.key, l.seen, l.shifted, l.debt, l.at = key, 0, false, 0, now
  local algorithm, problem = l.algorithm, nil
  if not algorithm.encode then
    return algorithm.load(l)
  end
  local text = redis.pcall('GET', key)
  local wrong_type = type(text) == 'table'
  if wrong_type then
    held(text)
    text = nil
  end
  if text or algorithm.load_absent then
    problem = algorithm.load(l, text)
  end
  if wrong_type and not problem then
    problem = foreign(l)
  end
  if next_key == key and not problem and not l.ahead then
    l.keep = true
  end
  return problem
end
