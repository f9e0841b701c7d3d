// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os/user"
	"strconv"
	"strings"

	"xsched/internal/model"
)

// otherUsers stands for all users without a limit of their own.
const otherUsers = -1

// maxPriorities reads the values of --max-priority: USER=N, or N for all other users.
func maxPriorities(limits []string, allow bool) (map[int]model.Priority, error) {
	all := map[int]model.Priority{}
	if allow {
		all[otherUsers] = model.PriorityMax
	}
	for _, text := range limits {
		uid, number := otherUsers, text
		if name, value, ok := strings.Cut(text, "="); ok {
			var err error
			if uid, err = uidOf(name); err != nil {
				return nil, err
			}
			number = value
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < int(model.PriorityMin) || n > int(model.PriorityMax) {
			return nil, usagef("--max-priority %q: %q is not a priority; use %d to %d", text, number, model.PriorityMin, model.PriorityMax)
		}
		all[uid] = model.Priority(n)
	}
	return all, nil
}

// uidOf returns the uid of a user by name or number.
func uidOf(name string) (int, error) {
	if uid, err := strconv.Atoi(name); err == nil && uid >= 0 {
		return uid, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, usagef("--max-priority: no user %q; use a name or a uid", name)
	}
	return strconv.Atoi(u.Uid)
}
