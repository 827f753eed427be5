//! Rules of the whole system that can be left out one by one, in a run of the world alone: the product's code has no
//! switch for that. Each has to be found.

/// How a rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The text of a script is replaced.
    Script(&'static str, &'static str),
    /// A part of the world does not keep to it.
    Part(Rule),
}

/// A rule that the world keeps for the parts that it plays, and for calls between parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A call that may have charged is never repeated.
    NoRepeat,
    /// A proxy gets the end of each request.
    Ends,
    /// A call that gets no answer ends by its timeout.
    Timeout,
    /// Polls for limits are answered with those in force.
    Polls,
    /// A replica has what its primary wrote before they lost each other.
    Replica,
    /// Sentinels name the primary.
    Sentinels,
    /// A node of a Cluster refers calls to the one that has their slot.
    Moved,
    /// A node whose slot moves refers calls for keys that it has not to the next.
    Ask,
    /// A call whose keys are on two nodes runs on neither.
    Together,
    /// Keys move with their slot.
    Migrated,
    /// A node that reaches too few others stops.
    Minority,
    /// A call on a check stream arrives once.
    Once,
    /// A limiter that leaves answers what it was sent.
    Drain,
}

/// A rule in words, and how it is left out.
pub const MUTATIONS: [(&str, How); 46] = [
    (
        "a check of one bucket stores what it charged",
        How::Script(
            "call('SET', key, text, 'PX', format(WHOLE, ttl))",
            "text = false",
        ),
    ),
    (
        "a fixed window counts what was counted in it",
        How::Script(
            "      if stored >= time then\n        used = units\n      end",
            "      used = 0",
        ),
    ),
    (
        "a sliding window counts what was counted in it",
        How::Script(
            "      if stored >= time then\n        used, past = units, before",
            "      if stored >= time then\n        used, past = 0, before",
        ),
    ),
    (
        "a window log adds what it admits",
        How::Script(
            "  local added = math.min(units, math.max(0, room(w)))\n  w.added = w.added + added\n  return added > 0",
            "  return true",
        ),
    ),
    (
        "units of a lease are charged to their bucket when they are granted",
        How::Script(
            "  b.debt = b.debt + units * b.x\n  return units",
            "  return units",
        ),
    ),
    (
        "units of a lease are counted in their window when they are granted",
        How::Script(
            "  w.out = w.out + units\n  M.charge(w, units)",
            "  w.out = w.out + units",
        ),
    ),
    (
        "units of a lease that come back to a window are not charged any more",
        How::Script("      if returned > 0 then\n", "      if false then\n"),
    ),
    (
        "units of a lease that come back to a bucket are not charged any more",
        How::Script(
            "M.credit(b, take(b, epoch, b.lease.settle[i + 2]))",
            "take(b, epoch, b.lease.settle[i + 2])",
        ),
    ),
    (
        "no more units of a lease come back than are outstanding",
        How::Script(
            "M.credit(b, take(b, epoch, b.lease.settle[i + 2]))",
            "b.debt = math.max(0, b.debt - owed(b, b.lease.settle[i + 1] + b.lease.settle[i + 2]))",
        ),
    ),
    (
        "a grant takes no more than what is left",
        How::Script(
            "math.max(0, math.min(want, math.floor(M.room(b) / (2 * proxies))))",
            "want",
        ),
    ),
    (
        "no more slots are given than there are",
        How::Script(
            "  local left = s.open - s.used",
            "  local left = s.open - s.used + 1",
        ),
    ),
    (
        "a slot that is freed can be taken",
        How::Script(
            "      became[name], s.used, changed = false, s.used - 1, true",
            "      changed = true",
        ),
    ),
    (
        "a slot that is renewed is kept",
        How::Script(
            "    elseif act == RENEW or act == ENTER and (present",
            "    elseif act == ENTER and (present",
        ),
    ),
    (
        "a reservation is settled once",
        How::Script(
            "      if settled == '0' then\n        c.settled",
            "      if true then\n        c.settled",
        ),
    ),
    (
        "what a request cost less than it reserved is given back",
        How::Script(
            "local back, lowered = give_back(l, number, held_units - units, at)",
            "local back, lowered = 0, false",
        ),
    ),
    (
        "what a request cost more than it reserved is charged",
        How::Script(
            "          excess = units - held_units",
            "          excess = 0",
        ),
    ),
    (
        "an edit is listed with what it changed",
        How::Script(
            "    marks[#marks + 1], marks[#marks + 2] = revision, member",
            "    marked[member] = true",
        ),
    ),
    (
        "an edit of one limit leaves the others",
        How::Script(
            "  each_thousand(writes, function(...)\n    redis.call('HSET', limits, ...)\n  end)",
            "  redis.call('HSET', limits, writes[1], writes[2])",
        ),
    ),
    (
        "a call that may have charged is never repeated",
        How::Part(Rule::NoRepeat),
    ),
    (
        "a proxy frees what a request held when it ends",
        How::Part(Rule::Ends),
    ),
    (
        "a call without an answer ends by its timeout",
        How::Part(Rule::Timeout),
    ),
    (
        "a limiter answers a poll with the limits in force",
        How::Part(Rule::Polls),
    ),
    (
        "a promoted replica has what was replicated",
        How::Part(Rule::Replica),
    ),
    ("sentinels name the primary", How::Part(Rule::Sentinels)),
    (
        "a GCRA counts what it admitted",
        How::Script(
            "          used = ahead * y + units",
            "          used = units",
        ),
    ),
    (
        "sub-windows count what they admit",
        How::Script("  w.used = w.used + units\n  local last", "  local last"),
    ),
    (
        "a calendar window counts what was counted in it",
        How::Script("  w.used = w.same and used or 0", "  w.used = 0"),
    ),
    (
        "a check passes if all its limits allow it",
        How::Script(
            "      allowed = allowed and cost <= limit - used\n",
            "      allowed = cost <= limit - used\n",
        ),
    ),
    (
        "a request waits for its turn in a queue",
        How::Script(
            "  return math.ceil(math.max(0, start - lead(b, cost)) / b.y)",
            "  return 0",
        ),
    ),
    (
        "an override is stored",
        How::Script(
            "      redis.call('HSET', KEYS[i], field, value)",
            "      value = nil",
        ),
    ),
    (
        "a credit gives no more than its units",
        How::Script(
            "  w.used = lower(w.used, units, w.out)\n  return true",
            "  w.used = lower(w.used, w.used, w.out)\n  return true",
        ),
    ),
    (
        "a denial counts towards a penalty",
        How::Script(
            "  p.count, p.changed = p.count + denials, true",
            "  p.changed = true",
        ),
    ),
    (
        "a penalty that follows another is longer",
        How::Script(
            "  local grown = now < remembered_till(p) and p.last * p.grow or 0",
            "  local grown = 0",
        ),
    ),
    (
        "a slot without its proxy expires",
        How::Script(
            "  mark(s, string.format(WHOLE, now + s.x)",
            "  mark(s, string.format(WHOLE, now + 80000000)",
        ),
    ),
    (
        "an adaptive limit falls while its service is too slow",
        How::Script(
            "    if was_slow > allowed and over > 250 and not alone then",
            "    if false then",
        ),
    ),
    (
        "an adaptive limit grows while its service is quick",
        How::Script(
            "      limit = before + math.max(1000, math.floor(before / part))",
            "      limit = before",
        ),
    ),
    (
        "a client that leaves early says nothing about a service",
        How::Script(
            "  if pace > 0 and answers < 1000000000 then",
            "  pace = pace > 0 and pace or 3\n  if answers < 1000000000 then",
        ),
    ),
    (
        "a night of late answers does not end all falls of an adaptive limit",
        How::Script("      own_late = math.min(own_late, 500)\n", ""),
    ),
    (
        "a node of a Cluster refers calls to the one that has their slot",
        How::Part(Rule::Moved),
    ),
    (
        "a node whose slot moves refers calls for keys that it has not",
        How::Part(Rule::Ask),
    ),
    (
        "a call whose keys are on two nodes runs on neither",
        How::Part(Rule::Together),
    ),
    ("keys move with their slot", How::Part(Rule::Migrated)),
    (
        "a node that reaches too few others stops",
        How::Part(Rule::Minority),
    ),
    (
        "what a check charged on one node and another denied is refunded",
        How::Script(
            "    taken = refund(l, units, charged_at) and 1 or 0",
            "    taken = 0",
        ),
    ),
    (
        "a call on a check stream arrives once",
        How::Part(Rule::Once),
    ),
    (
        "a limiter that leaves answers what it was sent",
        How::Part(Rule::Drain),
    ),
];
