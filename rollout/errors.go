package rollout

import "errors"

// ErrServer marks an error for which the policy server is to blame: the attempt is broken, not failed, and never
// becomes a training row.
var ErrServer = errors.New("policy server")
