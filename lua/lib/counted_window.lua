-- For windows with one count: w.used units of w.limit.

local function room(w)
  return w.limit - w.used
end

local function charge(w, units)
  local added = math.min(units, math.max(0, w.limit - w.used))
  w.used = w.used + added
  return added > 0
end

local function overcharge(w, units)
  local before = w.used
  w.used = math.min(before + units, 2 ^ 51)
  return w.used > before
end
