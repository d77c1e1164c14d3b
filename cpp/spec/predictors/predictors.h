// One per file, for the table.
#pragma once

#include <memory>

#include "cpp/spec/predictor.h"

namespace expertree {

std::unique_ptr<Predictor> make_last_predictor(const PredictorShape& shape);
std::unique_ptr<Predictor> make_token_table_predictor(const PredictorShape& shape);

}  // namespace expertree
