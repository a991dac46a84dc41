/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that the verbs transport needs from a card; also for `weft net check`. */
#ifndef WEFT_NET_VERBS_LIMITS_H
#define WEFT_NET_VERBS_LIMITS_H

#define VERBS_DEPTH     512u              /* most work requests under way to a peer */
#define VERBS_WINDOW    256u              /* most sends that the receiver has not taken */
#define VERBS_SPARE     16u               /* receives for control data, which is no message */
#define VERBS_DEPTH_MIN (4 * VERBS_SPARE) /* a card with less is not used */

#endif
